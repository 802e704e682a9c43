"""The interface between a program and the device on which it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphc.ir.graph import Input, State
from graphc.runtime.padding import Padded

Array = np.ndarray[Any, np.dtype[Any]]

Staged = Any
"""The feeds of a later step, as a backend has prepared them."""

Outputs = Callable[[], dict[str, Array]]
"""A function that waits for a step and returns new arrays by output name."""


@dataclass(frozen=True, slots=True)
class Report:
    """The number of `calls` of a step by kind, and the requests that a library `declined`.

    Kernels of graphc compute the declined requests.
    """

    calls: Mapping[str, int]
    declined: tuple[str, ...] = ()


class Backend(Protocol):
    """A plan bound to one arena on one device, which runs its steps."""

    is_torn: bool
    """True if updates of states have begun and did not end. A step that raises leaves all states
    unchanged, or sets this to True."""

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena."""

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory for values that are copied there."""

    @property
    def communication_bytes(self) -> int:
        """The bytes of workspace for collectives, outside the arena."""

    @property
    def kept_bytes(self) -> int:
        """The bytes of copies of states outside the arena, which restore states if a step fails."""

    @property
    def report(self) -> Report:
        """The number of calls of a step, and the declined requests."""

    @property
    def runs_ahead(self) -> bool:
        """True if a step may be submitted before the outputs of the previous step are fetched."""

    def read(self, state: State) -> Array:
        """Return a copy of a state."""

    def write(self, state: State, given: Array) -> None:
        """Replace a state; `given` has its shape and dtype."""

    def buffer(self, state: State) -> Any:
        """Return the location of a state's buffer, for another program that shares the state.

        On a CPU it is an array of bytes, on a GPU an address.
        """

    def stage(self, feeds: Mapping[Input, Array | Padded]) -> Staged:
        """Prepare the feeds of a later step, while an earlier step may still run.

        `feeds` has all inputs, already checked.
        """

    def submit(self, staged: Staged) -> Outputs:
        """Run one step: copy feeds to inputs, run every node, copy outputs.

        The step may still run when this returns. The caller must fetch the outputs before it
        submits the next step or, if this backend runs ahead, before it submits the second step from
        now.
        """
