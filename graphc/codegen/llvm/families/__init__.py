"""Native kernels of ops that are no programs, a file a family."""

from graphc.codegen.llvm.families import lookup, pooling, random, scan, step_numbers

FAMILIES = (lookup, pooling, random, scan, step_numbers)
"""The modules whose import registers the rules of the package's own ops."""
