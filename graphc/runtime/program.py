"""A program: a plan bound to one arena on one device. Bind once, step many times."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from graphc.errors import FeedError, OptionError, check_seed, did_you_mean
from graphc.ir.graph import State
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.backend import Backend, Staged
from graphc.runtime.checkpoint import load_states, save_states
from graphc.runtime.cpu.backend import CpuBackend
from graphc.runtime.feeds import Feeds
from graphc.runtime.initial import fill_initial

Array = np.ndarray[Any, np.dtype[Any]]


class Program:
    """One graph on one device. `plan` says where everything lives; nothing else is allocated.

    With `poison` every byte is NaN while no value lives there, so that a wrong plan shows. With
    `check_finite` a step that meets NaN or infinity raises `NonFiniteError` and leaves all states
    as they were. Without a `backend` the plan runs on the CPU; raises `OptionError` for a plan that
    was made for a GPU.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        seed: int = 0,
        poison: bool = False,
        check_finite: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.plan = plan
        self.graph = plan.graph
        self._seed = check_seed(seed)
        on_gpu = plan.device.kind == "cuda"
        if on_gpu and backend is None:
            raise OptionError(
                f"the plan was made for {plan.device.name}, a GPU; graphc.bind runs it where there "
                "is one, a plan with device='cpu' runs here"
            )
        self._feeds = Feeds(plan.graph, check_finite, check_limits=on_gpu)
        self._backend = backend or CpuBackend(plan, poison, check_finite)
        self._named = {state.name: state for state in self.graph.states}
        self.reset()

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one allocation; equal to the plan's."""
        return self._backend.arena_bytes

    @property
    def parameters(self) -> MutableMapping[str, Array]:
        """Parameters by name. Reading gives a copy; assigning checks shape and dtype."""
        return _States(
            {name: s for name, s in self._named.items() if s.role == "parameter"}, self._backend
        )

    @property
    def states(self) -> MutableMapping[str, Array]:
        """Everything that lives across steps: parameters, moments, counters."""
        return _States(self._named, self._backend)

    def reset(self) -> None:
        """Give all states their initial values again."""
        for state in self.graph.states:
            initial = np.empty(state.shape, state.type.dtype.numpy)
            fill_initial(state, self._seed, initial)
            self._backend.write(state, initial)

    def step(self, feeds: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Array]:
        """Copy inputs in, run every node, copy outputs out.

        Inputs are given by name; one with a default may be left out. Returns new arrays by output
        name, for a training program ``{"loss": array}``.
        """
        return self._backend.submit(self._staged({**_mapping(feeds), **named}))()

    def steps(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Array]]:
        """The outputs of one step for each batch of feeds.

        On a GPU the next batch is taken and made ready while a step runs; it is run when the next
        outputs are asked for, so states are those after the step whose outputs were given last. A
        fault in the next batch is raised then, too.
        """
        remaining = iter(batches)
        ready = self._next(remaining)
        while ready is not None:
            outputs = self._backend.submit(ready())
            ready = self._next(remaining)
            yield outputs()

    def _next(self, batches: Iterator[Mapping[str, Any]]) -> Callable[[], Staged] | None:
        """The next batch, made ready: what gives it, or raises what is wrong with it. None behind
        the last one."""
        try:
            staged = self._staged(_mapping(next(batches)))
        except StopIteration:
            return None
        except Exception as error:
            return functools.partial(_raise, error)
        return lambda: staged

    def _staged(self, feeds: Mapping[str, Any]) -> Staged:
        return self._backend.stage(self._feeds.checked(feeds))

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write all states to a safetensors file, completely or not at all.

        `notes` go into the file's metadata; `graphc.read_notes` gives them back.
        """
        save_states(path, dict(self.states), notes or {})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all states; raises `CheckpointError`, changing nothing, if the file does not fit."""
        types = {name: state.type for name, state in self._named.items()}
        for name, array in load_states(path, types).items():
            self._backend.write(self._named[name], array)


def _raise(error: Exception) -> Staged:
    raise error


def _mapping(feeds: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if feeds is not None and not isinstance(feeds, Mapping):
        raise FeedError(f"feeds are a mapping from names to arrays, got {feeds!r}")
    return feeds or {}


class _States(MutableMapping[str, Array]):
    """A view of some states by name."""

    def __init__(self, states: Mapping[str, State], backend: Backend) -> None:
        self._states, self._backend = states, backend

    def __getitem__(self, name: str) -> Array:
        self._require(name)
        return self._backend.read(self._states[name])

    def __setitem__(self, name: str, given: Array) -> None:
        self._require(name)
        state = self._states[name]
        dtype = state.type.dtype.numpy
        if np.shape(given) != state.shape or np.asarray(given).dtype != dtype:
            raise OptionError(
                f"{name!r} is {dtype}{list(state.shape)}, got "
                f"{np.asarray(given).dtype}{list(np.shape(given))}"
            )
        self._backend.write(state, np.asarray(given))

    def __delitem__(self, name: str) -> None:
        raise OptionError(f"{name!r} cannot be removed: its bytes are part of the plan")

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def _require(self, name: str) -> None:
        if name not in self._states:
            some = f"some that there are: {', '.join(list(self._states)[:6])}"
            cure = did_you_mean(name, self._states) or some
            raise OptionError(f"there is no {name!r}; {cure}")
