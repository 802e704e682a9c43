"""The CPU backend: native kernels, and NumPy as the reference and the fallback."""
