"""Native kernels of ops that are not programs, one file per family."""

from graphc.codegen.llvm.families import lookup, random, scan

FAMILIES = (lookup, random, scan)
"""The modules whose import registers the rules of the package's own ops."""
