"""Offsets in one arena for buffers with live ranges; see docs/internals/packing.md."""

from graphc.planner.pack.pack import NORMAL, THOROUGH, pack
from graphc.planner.pack.problem import Packing

__all__ = ["NORMAL", "THOROUGH", "Packing", "pack"]
