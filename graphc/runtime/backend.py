"""What a program asks of the device that it runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphc.ir.graph import Input, State

Array = np.ndarray[Any, np.dtype[Any]]

Staged = Any
"""Feeds that a backend has made ready."""

Outputs = Callable[[], dict[str, Array]]
"""Waits for a step and gives new arrays by output name."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a step calls: how many `calls` of each kind, and what a library was asked for that it
    does not serve, which kernels of graphc's own compute."""

    calls: Mapping[str, int]
    declined: tuple[str, ...] = ()


class Backend(Protocol):
    """A plan bound to one arena on one device."""

    is_torn: bool
    """Whether updates of states have begun that did not end. A step that raises leaves all states
    as they were, or this true."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one allocation."""

    @property
    def communication_bytes(self) -> int:
        """Bytes beside it in which exchanges with other ranks are made."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copies of states that a step makes beside it, to bring them back."""

    @property
    def report(self) -> Report:
        """What a step calls."""

    @property
    def runs_ahead(self) -> bool:
        """Whether a step may be submitted before the outputs of the one before are taken."""

    def read(self, state: State) -> Array:
        """A copy of a state."""

    def write(self, state: State, given: Array) -> None:
        """Replace a state; `given` has its shape and dtype."""

    def stage(self, feeds: Mapping[Input, Array]) -> Staged:
        """Make feeds ready for a later step; an earlier step may still run. All inputs are there
        and checked."""

    def submit(self, staged: Staged) -> Outputs:
        """Copy inputs in, run every node, copy outputs out.

        The step may still run when this returns. Its outputs are taken before the next step is
        submitted; before the one after that where this backend runs ahead.
        """
