"""A plan on the CPU: NumPy kernels on views of one array of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.errors import NonFiniteError
from graphc.ir.graph import Input, State
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.arena import Arena
from graphc.runtime.backend import Outputs, Staged
from graphc.runtime.cpu.bind import bind, numpy_settings

Array = np.ndarray[Any, np.dtype[Any]]


class CpuBackend:
    """Prebound calls in the order of the plan's graph."""

    def __init__(self, plan: MemoryPlan, poison: bool, check_finite: bool) -> None:
        self.plan, self._check_finite = plan, check_finite
        self._arena = Arena(plan)
        self._arrays, self._calls = bind(plan, self._arena, poison, check_finite)

    @property
    def arena_bytes(self) -> int:
        return int(self._arena.bytes.size)

    def read(self, state: State) -> Array:
        return self._arrays[state].copy()

    def write(self, state: State, given: Array) -> None:
        np.copyto(self._arrays[state], given)

    def stage(self, feeds: Mapping[Input, Array | float]) -> Staged:
        return feeds

    def submit(self, staged: Staged) -> Outputs:
        for source, given in staged.items():
            np.copyto(self._arrays[source], given)
        kept = self._arena.bytes[: self.plan.state_bytes].copy() if self._check_finite else None
        try:
            with numpy_settings():
                for call in self._calls:
                    call()
        except NonFiniteError:
            if kept is not None:
                self._arena.bytes[: kept.size] = kept
            raise
        visible = self.plan.graph.outputs
        outputs = {name: self._arrays[value].copy() for name, value in visible.items()}
        return lambda: outputs
