"""A family of programs: one network for several sizes, over one arena."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.errors import FeedError, OptionError
from graphc.ir.types import TensorType
from graphc.plans.family import FamilyPlan, Size
from graphc.runtime.feeds import Rests, fits
from graphc.runtime.program import Program, run_batches

Array = np.ndarray[Any, np.dtype[Any]]


class Family:
    """Programs of one network for several sizes, with one arena and one set of states.

    A step runs the program of the smallest size that holds its feeds. Feeds that are smaller than
    an input are padded at the end of each axis, if `pad` has a number for that input. Other inputs
    must have the exact shape of a size. Sizes are compared by the elements of their inputs.

    `plan` has the plan of each size. `owner` is the program that allocated the arena. Raises
    `FeedError` if `pad` names an unknown input, or if a number is not valid for its input.
    """

    def __init__(
        self,
        plan: FamilyPlan,
        programs: Sequence[Program],
        owner: Program,
        pad: Mapping[str, float],
    ) -> None:
        self.plan, self._owner = plan, owner
        self._programs = tuple(programs)
        self._rests = {program: program.rests(pad) for program in self._programs}
        self._pad = dict(pad)
        self._by_size = sorted(self._programs, key=_elements)

    def __repr__(self) -> str:
        return (
            f"<Family of {len(self._programs)} sizes on {self._owner.plan.device.name}: arena "
            f"{format_bytes(self.arena_bytes)}>"
        )

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The arguments of the function that built the network, for each size."""
        return self.plan.sizes

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena: those of the largest plan."""
        return self._owner.arena_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of backup copies of states outside the arena, as of `Program.kept_bytes`."""
        return self._owner.kept_bytes

    @property
    def rank(self) -> int:
        """The rank of this process, 0: a family runs in one process."""
        return self._owner.rank

    @property
    def ranks(self) -> int:
        """The number of processes that run the plans together, 1."""
        return self._owner.ranks

    @property
    def parameters(self) -> MutableMapping[str, Array]:
        """The parameters by name, as of `Program.parameters`."""
        return self._owner.parameters

    @property
    def states(self) -> MutableMapping[str, Array]:
        """The states by name, as of `Program.states`."""
        return self._owner.states

    def program(self, **size: Any) -> Program:
        """Return the program of a size; raises `OptionError` for an unknown size.

        It has no states of its own, so its `reset` raises `OptionError` unless it has the largest
        arena.
        """
        for each, program in zip(self.sizes, self._programs, strict=True):
            if dict(each) == size:
                return program
        raise OptionError(
            f"there is no size {size}; the sizes are {', '.join(str(dict(s)) for s in self.sizes)}"
        )

    def chosen(self, feeds: Mapping[str, Any]) -> Program:
        """Return the program that a step with these feeds runs; raises `FeedError`."""
        shapes = {name: _shape(name, each) for name, each in feeds.items()}
        for program in self._by_size:
            if self._problem(program.inputs, shapes) is None:
                return program
        largest = self._by_size[-1].inputs
        name = self._problem(largest, shapes)
        assert name is not None, "no size holds the feeds"
        known = ", ".join(dict.fromkeys(str(program.inputs[name]) for program in self._by_size))
        cure = (
            "add a size that holds it"
            if name in self._pad
            else f"add that size, or a number for {name!r} to pad"
        )
        raise FeedError(
            f"no size of the family holds input {name!r} with the shape {list(shapes[name])}; the "
            f"sizes have {known}; {cure}"
        )

    def _problem(
        self, inputs: Mapping[str, TensorType], shapes: Mapping[str, tuple[int, ...]]
    ) -> str | None:
        """Return the first input whose feed a size does not hold; None if it holds all."""
        for name, shape in shapes.items():
            whole = inputs[name].shape if name in inputs else shape  # unknown: the step refuses it
            if shape != whole and not (name in self._pad and fits(shape, whole)):
                return name
        return None

    def step(
        self, feeds: Mapping[str, Any] | None = None, /, *unnamed: Any, **named: Any
    ) -> dict[str, Array]:
        """Run one step of the smallest size that holds the feeds, and return its outputs.

        Feeds are as of `Program.step`, and may be smaller than inputs that `pad` names. Outputs
        have the shapes of the chosen size. Raises `FeedError` if no size holds the feeds.
        """
        if unnamed or not isinstance(feeds, Mapping | None):
            return self._owner.step(feeds, *unnamed, **named)  # raises the error
        given = {**(feeds or {}), **named}
        program, rests = self._chosen(given)
        return program.padded_step(given, rests)

    def steps(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Array]]:
        """Yield the outputs of one step for each batch of feeds, each with its own size.

        On a GPU, the next batch is fetched and staged while a step runs, as by `Program.steps`.
        """
        try:
            given = iter(batches)
        except TypeError:
            raise FeedError(f"batches must be an iterable of mappings, got {batches!r}") from None
        return run_batches(given, self._chosen)

    def _chosen(self, feeds: Mapping[str, Any]) -> tuple[Program, Rests]:
        program = self.chosen(feeds)
        return program, self._rests[program]

    def reset(self) -> None:
        """Reset all states to their initial values, and the step counters of all sizes to 0."""
        self._owner.reset()
        for program in self._programs:
            program.forget_steps()

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write all states to a safetensors file, as `Program.save` does.

        The file does not depend on the sizes.
        """
        self._owner.save(path, notes)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all states from a file, as `Program.load` does."""
        self._owner.load(path)


def _elements(program: Program) -> int:
    return sum(type.elements for type in program.inputs.values())


def _shape(name: str, given: Any) -> tuple[int, ...]:
    shape = getattr(given, "shape", None)
    try:
        return tuple(np.shape(given) if shape is None else shape)
    except ValueError:
        raise FeedError(
            f"input {name!r} must be an array, got a list of rows with different lengths"
        ) from None
