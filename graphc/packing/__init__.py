"""Offset assignment in one arena for buffers with fixed live ranges; see docs/packing.md."""

from graphc.packing.pack import NORMAL, THOROUGH, pack
from graphc.packing.problem import Packing

__all__ = ["NORMAL", "THOROUGH", "Packing", "pack"]
