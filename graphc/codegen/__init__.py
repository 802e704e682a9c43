"""CUDA C++ generated from the declarations of ops. Nothing here needs a GPU, CuPy or a compiler."""
