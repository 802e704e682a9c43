"""Steps of a training graph as numbers: what they cost, read and produce, and when tensors live.

Steps and tensors are numbered from 0. A run is a forward pass and the backward pass behind it:
forward steps may be executed again, backward steps run once and in order. Tensors that no step
produces are live from the start to their last use.

A schedule is a sequence s(0), s(1), ... of steps in which a step may occur several times. A use
reads the latest earlier occurrence of its producer, so a tensor is live from an occurrence of its
producer to its last use before the next one. Tensors in `live_out` are live to the end. With l(p) the
bytes live after position p, liveness is computed backwards:

    l(p - 1) = l(p) + what s(p) reads and is not live after p - what it produces and is live after p
    bytes during p = l(p) + what s(p) reads or produces and is not live after p + its workspace
                     - what its outputs overwrite of operands that die

`Problem.profile` computes this in one walk over a sequence; `Problem.levels` is the same, compiled,
for whole schedules. Their maximum, the peak, is what solvers bound. A packed arena may be larger.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphc.jit import suited
from graphc.scheduling.profile import Integers, StepArrays, arrays_of, live_levels


class AllBut:
    """A container of everything but the given values."""

    def __init__(self, values: Container[int]) -> None:
        self.values = values

    def __contains__(self, value: object) -> bool:
        return value not in self.values


@dataclass(frozen=True, slots=True)
class Run:
    """Forward steps [start, turn) and the backward steps [turn, stop) that follow them."""

    start: int
    boundary: int
    stop: int


@dataclass(frozen=True)
class Problem:
    """`inputs` and `outputs` are distinct values by step; `cost` is in any unit, sizes are bytes.

    `overwrites` lists by step the (output, input) pairs that may share bytes where the input dies.
    Steps in `once` are never repeated; values in `live_out` are live to the end.
    """

    cost: tuple[float, ...]
    workspace: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    overwrites: tuple[tuple[tuple[int, int], ...], ...]
    bytes: tuple[int, ...]
    once: frozenset[int]
    live_out: frozenset[int]
    runs: tuple[Run, ...]
    fixed_bytes: int = 0

    def __len__(self) -> int:
        return len(self.cost)

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """The step that makes each value, or -1 for what comes from outside."""
        producers = [-1] * len(self.bytes)
        for step, outputs in enumerate(self.outputs):
            for value in outputs:
                producers[value] = step
        return tuple(producers)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last step that reads each value, or -1."""
        reads = [-1] * len(self.bytes)
        for step, inputs in enumerate(self.inputs):
            for value in inputs:
                reads[value] = step
        return tuple(reads)

    def droppable(self, run: Run) -> set[int]:
        """Values of a run's forward pass that may be dropped and made again: what is held, or read
        by a later run, stays live throughout."""
        return {
            value
            for step in range(run.start, run.boundary)
            if step not in self.once
            for value in self.outputs[step]
            if value not in self.live_out and self.last_use[value] < run.stop
        }

    def missing(self, wanted: Iterable[int], available: Container[int]) -> list[int]:
        """Steps, in order, that make the `wanted` values from what is available."""
        pending = [value for value in wanted if value not in available]
        found: set[int] = set()
        while pending:
            step = self.producer[pending.pop()]
            if step >= 0 and step not in found:
                found.add(step)
                pending += [value for value in self.inputs[step] if value not in available]
        return sorted(found)

    def total(self, values: Iterable[int]) -> int:
        """Bytes of distinct values."""
        return sum(self.bytes[value] for value in values)

    def cost_of(self, sequence: Iterable[int]) -> float:
        """The sum of the costs of steps."""
        return sum(self.cost[step] for step in sequence)

    def extra_cost(self, sequence: Sequence[int]) -> float:
        """What the repeats in a sequence cost."""
        return self.cost_of(sequence) - self.cost_of(set(sequence))

    def peak(self, sequence: Sequence[int] | Integers) -> int:
        """The most bytes live at one step of a whole sequence."""
        return self.fixed_bytes + max(self.levels(sequence).tolist(), default=0)

    @cached_property
    def arrays(self) -> StepArrays:
        """The same as arrays."""
        return arrays_of(self)

    def levels(self, sequence: Sequence[int] | Integers) -> Integers:
        """Bytes live during each step of a whole sequence: `profile` with what is held behind."""
        levels = suited(live_levels, len(self))
        return levels(self.arrays, np.asarray(sequence, np.int64))

    def profile(
        self,
        sequence: Sequence[int],
        after: Collection[int] = (),
        uncounted: Container[int] = frozenset(),
    ) -> list[int]:
        """Bytes live during each of the steps, with `after` live behind them.

        What is read without being made counts from the first step on; `uncounted` never does.
        """
        size, live = self.bytes, {value for value in after if value not in uncounted}
        level = sum(size[value] for value in live)
        levels = [0] * len(sequence)
        for position in range(len(sequence) - 1, -1, -1):
            step = sequence[position]
            # `level` is l(p): what is live behind this position.
            here = level + self.workspace[step]
            dying = []
            for value in self.inputs[step]:
                if value not in live and value not in uncounted:
                    dying.append(value)
                    here += size[value]
            for value in self.outputs[step]:
                if value in live:  # before this appearance it is an older one, or not there
                    live.discard(value)
                    level -= size[value]
                elif value not in uncounted:
                    here += size[value]
            if dying:
                if self.overwrites[step]:
                    here -= self.overwritten(step, dying)
                for value in dying:
                    live.add(value)
                    level += size[value]
            levels[position] = here
        return levels

    def overwritten(self, step: int, dying: Container[int]) -> int:
        """Bytes that outputs take over from operands that die."""
        taken: set[int] = set()
        saved = 0
        for output, operand in self.overwrites[step]:
            if operand in dying and operand not in taken and output not in taken:
                taken |= {output, operand}
                saved += self.bytes[output]
        return saved
