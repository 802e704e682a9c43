"""Offsets in one arena for buffers with fixed lifetimes."""

from graphc.passes.packing.fit import pack
from graphc.passes.packing.problem import Packing, Problem

__all__ = ["Packing", "Problem", "pack"]
