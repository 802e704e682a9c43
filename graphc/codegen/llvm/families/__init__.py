"""Native kernels of ops that are no programs, a file a family."""

from graphc.codegen.llvm.families import lookup, pooling

FAMILIES = (lookup, pooling)
"""The modules whose import registers the rules of the package's own ops."""
