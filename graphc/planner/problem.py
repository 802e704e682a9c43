"""Steps of a training graph as numbers, with the live bytes of their schedules.

Steps and tensors are numbered from 0. A run is a forward pass followed by its backward pass.
Forward steps may be executed again; backward steps run once and in order. Tensors without a
producer are live from the start to their last use.

A schedule is a sequence s(0), s(1), ... of steps in which a step may occur several times. A use
reads the latest earlier execution of its producer. So a tensor is live from an execution of its
producer to its last use before the next execution. Tensors in `live_out` are live to the end. With
l(p) the bytes live after position p, live bytes are computed backwards:

    l(p - 1) = l(p) + inputs of s(p) not live after p - outputs of s(p) live after p
    bytes during p = l(p) + inputs and outputs of s(p) not live after p + its workspace
                     - bytes that its outputs overwrite of operands that die

`Problem.profile` computes this in one pass over a sequence. `Problem.levels` is a compiled version
for whole schedules. Solvers bound the maximum, the peak live bytes. A packed arena may be larger.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphc.jit import suited
from graphc.planner.profile import Integers, StepArrays, arrays_of, live_levels


class AllBut:
    """A container of all integers except the given values."""

    def __init__(self, values: Container[int]) -> None:
        self.values = values

    def __contains__(self, value: object) -> bool:
        return value not in self.values


@dataclass(frozen=True, slots=True)
class Run:
    """A run: forward steps `[start, boundary)` and their backward steps `[boundary, stop)`."""

    start: int
    boundary: int
    stop: int


@dataclass(frozen=True)
class Problem:
    """Steps and values of a graph as numbers.

    `inputs` and `outputs` list distinct values by step. `cost` is in any unit, sizes are in bytes.
    `overwrites` lists by step the (output, input) pairs that may share bytes if the input dies.
    Steps in `once` are never recomputed; values in `live_out` are live to the end.
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

    @property
    def order(self) -> range:
        """All steps in the given order."""
        return range(len(self))

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """The producer of each value, or -1 for values from outside."""
        producers = [-1] * len(self.bytes)
        for step, outputs in enumerate(self.outputs):
            for value in outputs:
                producers[value] = step
        return tuple(producers)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last consumer of each value in the order of steps, or -1."""
        reads = [-1] * len(self.bytes)
        for step, inputs in enumerate(self.inputs):
            for value in inputs:
                reads[value] = step
        return tuple(reads)

    def droppable(self, run: Run) -> set[int]:
        """Return the forward values of a run that may be dropped and recomputed.

        Values in `live_out` and values that a later run reads stay live throughout.
        """
        return {
            value
            for step in range(run.start, run.boundary)
            if step not in self.once
            for value in self.outputs[step]
            if value not in self.live_out and self.last_use[value] < run.stop
        }

    def missing(self, required: Iterable[int], available: Container[int]) -> list[int]:
        """Return the steps, in order, that compute the values `required` from those `available`."""
        pending = [value for value in required if value not in available]
        found: set[int] = set()
        while pending:
            step = self.producer[pending.pop()]
            if step >= 0 and step not in found:
                found.add(step)
                pending += [value for value in self.inputs[step] if value not in available]
        return sorted(found)

    def total(self, values: Iterable[int]) -> int:
        """Return the sum of the bytes of distinct values."""
        return sum(self.bytes[value] for value in values)

    def cost_of(self, sequence: Iterable[int]) -> float:
        """Return the sum of the costs of the steps in a sequence."""
        return sum(self.cost[step] for step in sequence)

    def extra_cost(self, sequence: Sequence[int]) -> float:
        """Return the cost of the recomputed steps in a sequence."""
        return self.cost_of(sequence) - self.cost_of(set(sequence))

    def peak(self, sequence: Sequence[int] | Integers) -> int:
        """Return the peak live bytes of a whole sequence."""
        return self.fixed_bytes + max(self.levels(sequence).tolist(), default=0)

    @cached_property
    def arrays(self) -> StepArrays:
        """The fields of this class as arrays."""
        return arrays_of(self)

    def levels(self, sequence: Sequence[int] | Integers) -> Integers:
        """Return the bytes live during each step of a whole sequence, without `fixed_bytes`."""
        levels = suited(live_levels, len(self))
        return levels(self.arrays, np.asarray(sequence, np.int64))

    def profile(
        self,
        sequence: Sequence[int],
        after: Collection[int] = (),
        uncounted: Container[int] = frozenset(),
    ) -> list[int]:
        """Return the bytes live during each step of a sequence if the values in `after` are live at
        its end.

        Values without a producer in the sequence count from the first step on. Values in
        `uncounted` never count.
        """
        size, live = self.bytes, {value for value in after if value not in uncounted}
        level = sum(size[value] for value in live)
        levels = [0] * len(sequence)
        for position in range(len(sequence) - 1, -1, -1):
            step = sequence[position]
            # `level` is l(p), the bytes live after this position.
            here = level + self.workspace[step]
            dying = []
            for value in self.inputs[step]:
                if value not in live and value not in uncounted:
                    dying.append(value)
                    here += size[value]
            for value in self.outputs[step]:
                if value in live:  # before this execution it is older or does not exist
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
        """Return the bytes of the operands in `dying` that the outputs of a step overwrite."""
        taken: set[int] = set()
        saved = 0
        for output, operand in self.overwrites[step]:
            if operand in dying and operand not in taken and output not in taken:
                taken |= {output, operand}
                saved += self.bytes[output]
        return saved
