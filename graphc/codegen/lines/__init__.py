"""Kernels that reduce a tensor along lines: sums, softmax, norms and their gradients."""
