"""Kernels that compute each element of a result from the corresponding elements alone."""
