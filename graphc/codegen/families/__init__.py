"""Ops that need their own form of kernel, one file per family."""
