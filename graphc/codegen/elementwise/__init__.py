"""Kernels that compute each element of a result from its own elements alone."""
