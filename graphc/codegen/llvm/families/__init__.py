"""Native kernels of ops that are not programs, one file per family."""

from graphc.codegen.llvm.families import lookup, random, scan, step_numbers

FAMILIES = (lookup, random, scan, step_numbers)
"""The modules whose import registers the rules of the package's own ops."""
