"""The NumPy arithmetic of ops whose kernels are more than a few lines."""
