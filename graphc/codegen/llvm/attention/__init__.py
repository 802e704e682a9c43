"""Kernels of fused attention for a CPU: tiles of scores, online softmax, and their gradient."""
