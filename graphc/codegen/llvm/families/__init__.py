"""Native kernels of ops that are not programs, one file per family."""

from graphc.codegen.llvm.families import lookup, scan

FAMILIES = (lookup, scan)
"""Modules that register the rules of the package's own ops when they are imported."""
