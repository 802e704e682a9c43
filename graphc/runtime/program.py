"""A program: kernels bound to one arena. Bind once, step many times."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from graphc.errors import FeedError, GraphcError, NonFiniteError, OptionError
from graphc.ir.builder import number_of
from graphc.ir.graph import Input
from graphc.ir.plan import MemoryPlan
from graphc.runtime.arena import Arena
from graphc.runtime.checkpoint import load_states, save_states
from graphc.runtime.cpu.bind import bind, numpy_settings
from graphc.runtime.initial import check_seed, fill_initial

Array = np.ndarray[Any, np.dtype[Any]]


class Program:
    """One graph on one device. `plan` says where everything lives; nothing else is allocated.

    With `poison` every byte is NaN while no value lives there, so that a wrong plan shows. With
    `check_finite` a step that meets NaN or infinity raises `NonFiniteError` and leaves all states
    as they were.
    """

    def __init__(
        self, plan: MemoryPlan, seed: int = 0, poison: bool = False, check_finite: bool = False
    ) -> None:
        self.plan = plan
        self.graph = plan.graph
        self._seed = check_seed(seed)
        self._check_finite = check_finite
        self._arena = Arena(plan)
        self._arrays, self._calls = bind(plan, self._arena, poison, check_finite)
        self._inputs = {source.name: source for source in self.graph.inputs}
        self._states = {state.name: self._arrays[state] for state in self.graph.states}
        self.reset()

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one allocation; equal to the plan's."""
        return int(self._arena.bytes.size)

    @property
    def parameters(self) -> MutableMapping[str, Array]:
        """Parameters by name. Reading gives a copy; assigning checks shape and dtype."""
        names = [state.name for state in self.graph.states if state.role == "parameter"]
        return _States(names, self._states)

    @property
    def states(self) -> MutableMapping[str, Array]:
        """Everything that lives across steps: parameters, moments, counters."""
        return _States(list(self._states), self._states)

    def reset(self) -> None:
        """Give all states their initial values again."""
        for state in self.graph.states:
            fill_initial(state, self._seed, self._arrays[state])

    def step(self, feeds: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Array]:
        """Copy inputs in, run every node, copy outputs out.

        Inputs are given by name; one with a default may be left out. Returns new arrays by output
        name, for a training program ``{"loss": array}``.
        """
        if feeds is not None and not isinstance(feeds, Mapping):
            raise FeedError(f"feeds are a mapping from names to arrays, got {feeds!r}")
        self._feed({**(feeds or {}), **named})
        kept = self._arena.bytes[: self.plan.state_bytes].copy() if self._check_finite else None
        try:
            with numpy_settings():
                for call in self._calls:
                    call()
        except NonFiniteError:
            if kept is not None:
                self._arena.bytes[: kept.size] = kept
            raise
        return {name: self._arrays[value].copy() for name, value in self.graph.outputs.items()}

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write all states to a safetensors file, completely or not at all.

        `notes` go into the file's metadata; `graphc.read_notes` gives them back.
        """
        save_states(path, self._states, notes or {})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all states; raises `CheckpointError`, changing nothing, if the file does not fit."""
        load_states(path, self._states)

    def _feed(self, feeds: Mapping[str, Any]) -> None:
        unknown = [name for name in feeds if name not in self._inputs]
        if unknown:
            raise FeedError(
                f"the program has no input {', '.join(map(repr, unknown))}; its inputs are "
                f"{', '.join(map(repr, self._inputs)) or 'none'}"
            )
        checked = [(self._arrays[i], self._checked(i, feeds)) for i in self._inputs.values()]
        for array, given in checked:
            np.copyto(array, given)

    def _checked(self, source: Input, feeds: Mapping[str, Any]) -> Array | float:
        if source.name not in feeds:
            if source.default is None:
                raise FeedError(f"input {source.name!r} is missing; feed an array of {source.type}")
            return source.default
        given = feeds[source.name]
        if isinstance(given, int | float) and source.shape == ():
            try:
                number = number_of(f"input {source.name!r}", given, source.type.dtype)
            except GraphcError as error:
                raise FeedError(str(error)) from None
            given = np.asarray(number).astype(source.type.dtype.numpy)
        if isinstance(given, np.generic):
            given = np.asarray(given)
        if not isinstance(given, np.ndarray):
            raise FeedError(
                f"input {source.name!r} is {source.type}, got {type(given).__name__}; feed a NumPy "
                f"array, for example numpy.asarray(..., {source.type.dtype.name!r})"
            )
        if given.dtype != source.type.dtype.numpy:
            raise FeedError(
                f"input {source.name!r} is {source.type}, got the dtype {given.dtype}; convert it "
                f"with .astype({source.type.dtype.name!r})"
            )
        if given.shape != source.shape:
            raise FeedError(
                f"input {source.name!r} is {source.type}, got the shape {list(given.shape)}; "
                "shapes are fixed when a program is compiled"
            )
        if self._check_finite and given.dtype.kind not in "biu":
            bad = np.flatnonzero(~np.isfinite(np.asarray(given, np.float64)))
            if bad.size:
                where = tuple(int(i) for i in np.unravel_index(bad[0], given.shape))
                raise NonFiniteError(
                    f"input {source.name!r} holds {given[where]} at {list(where)}, "
                    f"{bad.size} such elements in all"
                )
        return given


class _States(MutableMapping[str, Array]):
    """A view of some states by name."""

    def __init__(self, names: list[str], arrays: Mapping[str, Array]) -> None:
        self._names = dict.fromkeys(names)
        self._arrays = arrays

    def __getitem__(self, name: str) -> Array:
        self._require(name)
        return self._arrays[name].copy()

    def __setitem__(self, name: str, given: Array) -> None:
        self._require(name)
        array = self._arrays[name]
        if np.shape(given) != array.shape or np.asarray(given).dtype != array.dtype:
            raise OptionError(
                f"{name!r} is {array.dtype}{list(array.shape)}, got "
                f"{np.asarray(given).dtype}{list(np.shape(given))}"
            )
        np.copyto(array, given)

    def __delitem__(self, name: str) -> None:
        raise OptionError(f"{name!r} cannot be removed: its bytes are part of the plan")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _require(self, name: str) -> None:
        if name not in self._names:
            known = ", ".join(list(self._names)[:6])
            raise OptionError(f"there is no {name!r}; some that there are: {known}")
