"""The CPU backend: kernels on views of one array of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from graphc.ir.graph import Input, Node, State, Value
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.arena import Arena
from graphc.runtime.backend import Outputs, Report, Staged
from graphc.runtime.cpu.bind import bind, numpy_settings
from graphc.runtime.cpu.copies import Concurrent, Lanes
from graphc.runtime.cpu.native import Rows
from graphc.runtime.cpu.side_by_side import SideBySide
from graphc.runtime.index_ranges import ComputedRange
from graphc.runtime.padding import Padded, write
from graphc.runtime.ranks.lane import ALONE, Lane

Array = np.ndarray[Any, np.dtype[Any]]


class CpuBackend:
    """A CPU program: a list of prebound calls in the order of the plan's nodes.

    If a check follows the first update of a state, the states are copied before that update, and
    restored if the step fails. `lent` maps the indices of state buffers to bytes of another
    program's arena. `within` is a program whose whole arena this one uses.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        poison: bool,
        check_finite: bool,
        computed: Mapping[Node, Sequence[ComputedRange]],
        threads: int | None = None,
        lane: Lane = ALONE,
        lent: Mapping[int, Array] | None = None,
        within: Self | None = None,
    ) -> None:
        self.plan, self.is_torn = plan, False
        self._arena: Arena = Arena(plan, lent, None if within is None else within._arena.bytes)
        self._lane = lane
        self._beside = Concurrent() if plan.host_bytes else None
        lanes = lane if self._beside is None else Lanes(lane, self._beside)
        self._arrays, calls = bind(
            plan, self._arena, poison, check_finite, computed, threads, lanes
        )
        self._reading, self._updating = calls.reading, calls.updating
        effects = plan.graph.effects if calls.checks_late else ()
        replaced = (
            state
            for node in effects
            for state in node.replaced.values()
            if isinstance(state, State)
        )
        self._copies: dict[str, Array] = {} if within is None else within._copies
        self._kept = [(self._arrays[state], self._copy_of(state)) for state in replaced]

    def _copy_of(self, state: Value) -> Array:
        """Return memory for a copy of a state, which all programs of one arena share."""
        name = self.plan.graph.names[state]
        if name not in self._copies:
            self._copies[name] = np.empty_like(self._arrays[state])
        return self._copies[name]

    @property
    def arena_bytes(self) -> int:
        return int(self._arena.bytes.size)

    @property
    def host_bytes(self) -> int:
        return int(self._arena.host.size)

    @property
    def communication_bytes(self) -> int:
        return self._lane.scratch.bytes if self._lane.wire.size > 1 else 0

    @property
    def kept_bytes(self) -> int:
        return sum(copy.nbytes for copy in self._copies.values())

    @property
    def report(self) -> Report:
        calls = [*self._reading, *self._updating]
        rows = [call.rows for call in calls if isinstance(call, Rows | SideBySide)]
        return Report({"native": sum(rows), "numpy": len(calls) - len(rows)})

    @property
    def runs_ahead(self) -> bool:
        return False

    def read(self, state: State) -> Array:
        return self._arrays[state].copy()

    def write(self, state: State, given: Array) -> None:
        if self._beside is not None:
            self._beside.settle()
        np.copyto(self._arrays[state], given)

    def buffer(self, state: State) -> Any:
        return self._arena.buffer(self.plan.placements[state].buffer)

    def stage(self, feeds: Mapping[Input, Array | Padded]) -> Staged:
        return feeds

    def submit(self, staged: Staged) -> Outputs:
        if self._beside is not None:
            self._beside.begin_step()
        for source, given in staged.items():
            write(self._arrays[source], given)
        visible = self.plan.graph.outputs
        outputs = {n: np.empty_like(self._arrays[v], order="C") for n, v in visible.items()}
        try:
            with numpy_settings():
                for call in self._reading:
                    call()
                if self._updating:
                    self._update()
        except BaseException:
            self._lane.stopped()
            if self._beside is not None:  # a copy may write what a program of this arena uses next
                self._beside.settle()
            raise
        if self._beside is not None:
            self._beside.end_step()
        for name, value in visible.items():
            np.copyto(outputs[name], self._arrays[value])
        return lambda: outputs

    def _update(self) -> None:
        """Run the calls from the first update on.

        `is_torn` is True while they run, so that an interruption is detected.
        """
        for state, copy in self._kept:
            np.copyto(copy, state)
        self.is_torn = True
        try:
            for call in self._updating:
                call()
        except BaseException:
            if self._beside is not None:
                self._beside.settle()
            if self._kept:
                for state, copy in self._kept:
                    np.copyto(state, copy)
                self.is_torn = False
            raise
        self.is_torn = False
