"""What has to run before what, and who reads which value last: a tape without its order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphc.planning.steps import Tape

Arc = tuple[int, int]
"""Two steps, the first of which has to run before the second."""


@dataclass(frozen=True)
class Precedence:
    """Steps of a tape under a partial order: its data dependencies and further `arcs`.

    `base` bytes are live throughout beside the values of the tape. What is live after some steps
    depends on which have run, not on their order: an output that overwrites an operand takes
    bytes equal to those that die.
    """

    tape: Tape
    arcs: tuple[Arc, ...] = ()
    base: int = 0

    def __len__(self) -> int:
        return len(self.tape)

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """By step, those that have to run before it, ascending."""
        tape = self.tape
        found = [
            {tape.maker[value] for value in inputs if tape.maker[value] >= 0}
            for inputs in tape.inputs
        ]
        for first, second in self.arcs:
            found[second].add(first)
        return tuple(tuple(sorted(steps)) for steps in found)

    @cached_property
    def behind(self) -> tuple[tuple[int, ...], ...]:
        """By step, those that wait for it, ascending."""
        found: list[list[int]] = [[] for _ in range(len(self))]
        for step, steps in enumerate(self.before):
            for first in steps:
                found[first].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """By value, the steps that read it, ascending."""
        found: list[list[int]] = [[] for _ in self.tape.bytes]
        for step, inputs in enumerate(self.tape.inputs):
            for value in inputs:
                found[value].append(step)
        return tuple(map(tuple, found))

    @cached_property
    def sized(self) -> tuple[tuple[int, ...], ...]:
        """By step, the values it reads that take bytes."""
        size = self.tape.bytes
        return tuple(tuple(v for v in inputs if size[v]) for inputs in self.tape.inputs)

    @cached_property
    def lasting(self) -> tuple[int, ...]:
        """By step, the bytes that it leaves behind for others, before operands die."""
        tape, readers = self.tape, self.readers
        return tuple(
            sum(tape.bytes[v] for v in outputs if readers[v] or v in tape.held)
            for outputs in tape.outputs
        )

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """By step, the bytes of its outputs and its workspace."""
        tape = self.tape
        return tuple(
            workspace + sum(tape.bytes[v] for v in outputs)
            for workspace, outputs in zip(tape.workspace, tape.outputs, strict=True)
        )

    @cached_property
    def first_bytes(self) -> int:
        """Bytes live before anything has run: what comes from outside, and the base."""
        tape = self.tape
        outside = (
            size
            for value, size in enumerate(tape.bytes)
            if tape.maker[value] < 0 and (self.readers[value] or value in tape.held)
        )
        return self.base + sum(outside)

    def profile(self, sequence: Sequence[int]) -> list[int]:
        """Bytes live during each step of an order of all steps."""
        return [self.base + level for level in self.tape.profile(sequence, self.tape.held)]

    def is_legal(self, sequence: Sequence[int]) -> bool:
        """Whether every step stands there once, behind all that have to run before it."""
        place = {step: index for index, step in enumerate(sequence)}
        if len(place) != len(sequence) or sorted(place) != list(range(len(self))):
            return False
        return all(
            place[first] < place[step] for step, steps in enumerate(self.before) for first in steps
        )

    def within(self, steps: Sequence[int], beyond: Iterable[int], base: int) -> Precedence:
        """Some steps as a problem of their own, in the order given.

        `beyond` are the values of these steps that are live behind them; `base` counts what is
        live throughout and not theirs.
        """
        tape = self.tape
        number: dict[int, int] = {}
        for step in steps:
            for value in (*tape.inputs[step], *tape.outputs[step]):
                number.setdefault(value, len(number))
        place = {step: index for index, step in enumerate(steps)}

        def renamed(values: Sequence[int]) -> tuple[int, ...]:
            return tuple(number[value] for value in values)

        inner = Tape(
            cost=(0.0,) * len(steps),
            workspace=tuple(tape.workspace[step] for step in steps),
            inputs=tuple(renamed(tape.inputs[step]) for step in steps),
            outputs=tuple(renamed(tape.outputs[step]) for step in steps),
            overwrites=tuple(
                tuple((number[o], number[i]) for o, i in tape.overwrites[step]) for step in steps
            ),
            bytes=tuple(tape.bytes[value] for value in number),
            once=frozenset(),
            held=frozenset(number[value] for value in beyond if value in number),
            runs=(),
        )
        arcs = tuple(
            (place[first], place[step])
            for step in steps
            for first in self.before[step]
            if first in place
        )
        return Precedence(inner, arcs, base)
