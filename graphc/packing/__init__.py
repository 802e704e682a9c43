"""Offsets in one arena for buffers with fixed lifetimes; docs/packing.md tells how it works."""

from graphc.packing.pack import NORMAL, THOROUGH, pack
from graphc.packing.problem import Packing

__all__ = ["NORMAL", "THOROUGH", "Packing", "pack"]
