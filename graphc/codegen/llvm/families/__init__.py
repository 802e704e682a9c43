"""Native kernels of ops that are not programs, one file per family."""

from graphc.codegen.llvm.families import attention, lookup, scan

FAMILIES = (attention, lookup, scan)
"""Modules that register the rules of the package's own ops when they are imported."""
