"""Kernels for a CPU as LLVM IR."""
