"""Offsets in one arena for buffers with live ranges; see docs/internals/packing.md."""

from graphc.packing.pack import NORMAL, THOROUGH, pack
from graphc.packing.problem import Packing

__all__ = ["NORMAL", "THOROUGH", "Packing", "pack"]
