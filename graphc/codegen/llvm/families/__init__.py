"""Native kernels of ops that are not programs, one file per family."""

from graphc.codegen.llvm.families import lookup, scan

FAMILIES = (lookup, scan)
"""The modules whose import registers the rules of the package's own ops."""
