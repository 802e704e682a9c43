"""Copies of tensors to host memory in a step of torch, beside recomputation."""
