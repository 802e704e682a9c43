"""Ops that need a form of kernel of their own, a file a family."""
