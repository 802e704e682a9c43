"""Steps under a partial order, and the live bytes of their linear extensions.

Let D be the set of steps that have run. In a legal order, D always contains all predecessors of its
steps. The live bytes depend only on the set, not on the order inside it:

    live(D) = base + bytes of the values from outside or produced in D that have a consumer
              outside D or are in `live_out`

An output that overwrites an operand does not change this, since it takes as many bytes as die.
Running step s from D takes

    during(s, D) = live(D) + bytes of the outputs of s + its workspace
                   - bytes that its outputs overwrite of operands without further consumers

An order is thus a path through such sets, and its peak is the largest `during` on it. exact.py
searches these paths, cuts.py bounds them from below, and listing.py and windows.py improve a path.
Finding the least peak is NP-hard (Sethi, 1975, for registers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from graphc.planner.problem import Problem
from graphc.planner.profile import Integers, StepArrays, rows_of

Arc = tuple[int, int]
"""A pair of steps; the first has to run before the second."""


class OrderTable(NamedTuple):
    """The properties of `Precedence` as arrays, with lists concatenated as in `StepArrays`.

    `last_bytes` are the bytes live after all steps.
    """

    steps: StepArrays
    first_predecessor: Integers
    predecessors: Integers
    first_successor: Integers
    successors: Integers
    first_consumer: Integers
    consumers: Integers
    needed: Integers
    retained: Integers
    first_bytes: int
    last_bytes: int


@dataclass(frozen=True)
class Precedence:
    """Steps under a partial order: their data dependences and further `arcs`.

    `base` bytes are live throughout, in addition to the values of the steps.
    """

    steps: Problem
    arcs: tuple[Arc, ...] = ()
    base: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The direct predecessors of each step, in ascending order."""
        steps = self.steps
        found = [
            {steps.producer[value] for value in inputs if steps.producer[value] >= 0}
            for inputs in steps.inputs
        ]
        for first, second in self.arcs:
            found[second].add(first)
        return tuple(tuple(sorted(firsts)) for firsts in found)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The direct successors of each step, in ascending order."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for step, firsts in enumerate(self.predecessors):
            for first in firsts:
                found[first].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """The steps that read each value, in ascending order."""
        found: list[list[int]] = [[] for _ in self.steps.bytes]
        for step, inputs in enumerate(self.steps.inputs):
            for value in inputs:
                found[value].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def retained(self) -> tuple[int, ...]:
        """For each step, the bytes of its outputs that stay live after the step."""
        steps, consumers = self.steps, self.consumers
        return tuple(
            # A value without consumers counts only while its producer runs.
            sum(steps.bytes[v] for v in outputs if consumers[v] or v in steps.live_out)
            for outputs in steps.outputs
        )

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """For each step, the bytes of its outputs and its workspace."""
        steps = self.steps
        return tuple(
            workspace + sum(steps.bytes[v] for v in outputs)
            for workspace, outputs in zip(steps.workspace, steps.outputs, strict=True)
        )

    @cached_property
    def first_bytes(self) -> int:
        """The bytes live before the first step: values without a producer, and `base`."""
        steps = self.steps
        outside = (
            size
            for value, size in enumerate(steps.bytes)
            if steps.producer[value] < 0 and (self.consumers[value] or value in steps.live_out)
        )
        return self.base + sum(outside)

    @cached_property
    def table(self) -> OrderTable:
        """The properties of this class as arrays."""
        first_predecessor, predecessors = rows_of(self.predecessors)
        first_successor, successors = rows_of(self.successors)
        first_consumer, consumers = rows_of(self.consumers)
        return OrderTable(
            steps=self.steps.arrays,
            first_predecessor=first_predecessor,
            predecessors=predecessors,
            first_successor=first_successor,
            successors=successors,
            first_consumer=first_consumer,
            consumers=consumers,
            needed=np.array(self.needed, np.int64),
            retained=np.array(self.retained, np.int64),
            first_bytes=self.first_bytes,
            last_bytes=self.base + self.steps.total(self.steps.live_out),
        )

    def profile(self, sequence: Sequence[int]) -> list[int]:
        """Return the bytes live during each step of a sequence, which has every step once."""
        return [self.base + level for level in self.steps.levels(sequence).tolist()]

    def restricted(self, chosen: Sequence[int], beyond: Iterable[int], base: int) -> Precedence:
        """Return the `chosen` steps as a separate problem, in the given order.

        `beyond` lists the values that are live after the last of these steps. `base` counts the
        bytes of other values, which are live throughout.
        """
        steps = self.steps
        number: dict[int, int] = {}
        for step in chosen:
            for value in (*steps.inputs[step], *steps.outputs[step]):
                number.setdefault(value, len(number))
        place = {step: index for index, step in enumerate(chosen)}

        def renamed(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(number[value] for value in values)

        inner = Problem(
            # Orders are compared by bytes only, so costs, `once` and runs do not matter.
            cost=(0.0,) * len(chosen),
            workspace=tuple(steps.workspace[step] for step in chosen),
            inputs=tuple(renamed(steps.inputs[step]) for step in chosen),
            outputs=tuple(renamed(steps.outputs[step]) for step in chosen),
            overwrites=tuple(
                tuple((number[o], number[i]) for o, i in steps.overwrites[step]) for step in chosen
            ),
            bytes=tuple(steps.bytes[value] for value in number),
            once=frozenset(),
            live_out=frozenset(number[value] for value in beyond if value in number),
            runs=(),
        )
        # Includes the arcs that data dependences already imply, which changes nothing.
        arcs = tuple(
            (place[first], place[step])
            for step in chosen
            for first in self.predecessors[step]
            if first in place
        )
        return Precedence(inner, arcs, base)
