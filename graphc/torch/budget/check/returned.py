"""Counts of the tensors that a module returns; the caller may give a gradient for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Returned:
    """Counts of the outputs and inputs of a graph that a module returns; inputs require grad."""

    outputs: Mapping[int, int]
    """Counts by the index of the output."""
    inputs: Mapping[int, int]
    """Counts by the index of the input."""
    other_bytes: int = 0
    """Gradients of leaves that the graph does not read: the caller's, and those in ``.grad``."""
