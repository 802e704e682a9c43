"""Kernels of fused attention and its gradient."""
