"""What a program asks of the device that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from graphc.ir.graph import Input, State

Array = np.ndarray[Any, np.dtype[Any]]


class Backend(Protocol):
    """A plan bound to one arena on one device."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one allocation."""

    def read(self, state: State) -> Array:
        """A copy of a state."""

    def write(self, state: State, given: Array) -> None:
        """Replace a state; `given` has its shape and dtype."""

    def step(self, feeds: Mapping[Input, Array | float]) -> dict[str, Array]:
        """Copy inputs in, run every node, copy outputs out. All inputs are there and checked."""
