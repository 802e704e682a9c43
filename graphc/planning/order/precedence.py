"""What has to run before what, and who reads which value last: steps without their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.planning.steps import Steps

Arc = tuple[int, int]
"""Two steps, the first of which has to run before the second."""


@dataclass(frozen=True)
class Precedence:
    """Steps under a partial order: their data dependencies and further `arcs`.

    `base` bytes are live throughout beside the values of the steps. What is live after some steps
    depends on which have run, not on their order: an output that overwrites an operand takes
    bytes equal to those that die.
    """

    steps: Steps
    arcs: tuple[Arc, ...] = ()
    base: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """By step, those that have to run before it, ascending."""
        steps = self.steps
        found = [
            {steps.maker[value] for value in inputs if steps.maker[value] >= 0}
            for inputs in steps.inputs
        ]
        for first, second in self.arcs:
            found[second].add(first)
        return tuple(tuple(sorted(firsts)) for firsts in found)

    @cached_property
    def behind(self) -> tuple[tuple[int, ...], ...]:
        """By step, those that wait for it, ascending."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for step, firsts in enumerate(self.before):
            for first in firsts:
                found[first].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By value, the steps that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.steps.bytes]
        for step, inputs in enumerate(self.steps.inputs):
            for value in inputs:
                found[value].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def sized(self) -> tuple[tuple[int, ...], ...]:
        """By step, the values it reads that take bytes."""
        size = self.steps.bytes
        return tuple(tuple(v for v in inputs if size[v]) for inputs in self.steps.inputs)

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """By step, the bytes that it leaves behind for others, before operands die."""
        steps, readers = self.steps, self.readers
        return tuple(
            sum(steps.bytes[v] for v in outputs if readers[v] or v in steps.held)
            for outputs in steps.outputs
        )

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """By step, the bytes of its outputs and its workspace."""
        steps = self.steps
        return tuple(
            workspace + sum(steps.bytes[v] for v in outputs)
            for workspace, outputs in zip(steps.workspace, steps.outputs, strict=True)
        )

    @cached_property
    def first_bytes(self) -> int:
        """Bytes live before anything has run: what comes from outside, and the base."""
        steps = self.steps
        outside = (
            size
            for value, size in enumerate(steps.bytes)
            if steps.maker[value] < 0 and (self.readers[value] or value in steps.held)
        )
        return self.base + sum(outside)

    def profile(self, sequence: Sequence[int]) -> list[int]:
        """Bytes live during each step of an order of all steps."""
        return [self.base + level for level in self.steps.profile(sequence, self.steps.held)]

    def is_legal(self, sequence: Sequence[int]) -> bool:
        """Whether every step stands there once, behind all that have to run before it."""
        place = {step: index for index, step in enumerate(sequence)}
        if len(place) != len(sequence) or sorted(place) != list(range(len(self))):
            return False
        return all(
            place[first] < place[step]
            for step, firsts in enumerate(self.before)
            for first in firsts
        )

    def within(self, chosen: Sequence[int], beyond: Iterable[int], base: int) -> Precedence:
        """The `chosen` steps as a problem of their own, in the order given.

        `beyond` are the values of theirs that are live behind them; `base` counts what is
        live throughout and not theirs.
        """
        steps = self.steps
        number: dict[int, int] = {}
        for step in chosen:
            for value in (*steps.inputs[step], *steps.outputs[step]):
                number.setdefault(value, len(number))
        place = {step: index for index, step in enumerate(chosen)}

        def renamed(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(number[value] for value in values)

        inner = Steps(
            cost=(0.0,) * len(chosen),
            workspace=tuple(steps.workspace[step] for step in chosen),
            inputs=tuple(renamed(steps.inputs[step]) for step in chosen),
            outputs=tuple(renamed(steps.outputs[step]) for step in chosen),
            overwrites=tuple(
                tuple((number[o], number[i]) for o, i in steps.overwrites[step]) for step in chosen
            ),
            bytes=tuple(steps.bytes[value] for value in number),
            once=frozenset(),
            held=frozenset(number[value] for value in beyond if value in number),
            runs=(),
        )
        arcs = tuple(
            (place[first], place[step])
            for step in chosen
            for first in self.before[step]
            if first in place
        )
        return Precedence(inner, arcs, base)
