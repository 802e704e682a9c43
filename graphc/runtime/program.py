"""A program: a plan bound to one arena on one device. Bind once, step many times."""

from __future__ import annotations

import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

import numpy as np

from graphc.errors import (
    FeedError,
    OptionError,
    TornError,
    UnknownNameError,
    check_seed,
    did_you_mean,
    quoted,
    whole_number,
)
from graphc.ir.device import MOST_THREADS
from graphc.ir.graph import State
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.arena import check_outputs
from graphc.runtime.backend import Backend, Outputs, Report, Staged
from graphc.runtime.checkpoint import load_states, save_states
from graphc.runtime.cpu.backend import CpuBackend
from graphc.runtime.feeds import Feeds
from graphc.runtime.index_ranges import IndexRanges
from graphc.runtime.initial import fill_initial
from graphc.runtime.ranks.held import Held, held_by_name, member_of, parts_written, whole_row
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import by_rank_0, lane_of, of_rank
from graphc.runtime.turns import Turns

Array = np.ndarray[Any, np.dtype[Any]]


class Program:
    """One graph on one device. `plan` says where everything lives; nothing else is allocated, but
    for `kept_bytes`, which few programs have.

    A step that raises leaves all states as they were, or it was stopped in the middle of its
    updates: then reading states, `save` and further steps raise `TornError` until `load` or
    `reset`. Threads take turns; see docs/training.md.

    With `poison` every byte is NaN while no value lives there, so that a wrong plan shows. With
    `check_finite` a step that meets NaN or infinity raises `NonFiniteError` and leaves all states
    as they were. Without a `backend` the plan runs on the CPU, native kernels on so many
    `threads`; raises `OptionError` for a plan that was made for a GPU.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        seed: int = 0,
        poison: bool = False,
        check_finite: bool = False,
        backend: Backend | None = None,
        threads: int | None = None,
        lane: Lane | None = None,
    ) -> None:
        self.plan = plan
        self.graph = plan.graph
        self._seed = check_seed(seed)
        if threads is not None:
            whole_number("threads", threads, most=MOST_THREADS)
        on_gpu = plan.device.kind == "cuda"
        if on_gpu and backend is None:
            raise OptionError(
                f"the plan was made for {plan.device.name}, a GPU; graphc.bind runs it where there "
                "is one, a plan with device='cpu' runs here"
            )
        self._lane = lane_of(plan, seed, lane)
        ranges = IndexRanges(plan.graph)
        self._feeds = Feeds(plan.graph, check_finite, ranges.fed)
        self._backend = backend or CpuBackend(
            plan, poison, check_finite, ranges.computed, threads, self._lane
        )
        check_outputs(plan)
        self._named = held_by_name(self.graph)
        self._turns = Turns(on_gpu)
        self._pending: deque[_Pending] = deque()
        self._latest: _Pending | None = None
        self._gathered: tuple[State, Array] | None = None
        """The row that was gathered last, until a state changes: its members are read in turn."""
        self.reset()

    @property
    def backend(self) -> Backend:
        """The plan as it is bound to the device."""
        return self._backend

    @property
    def arena_bytes(self) -> int:
        """Bytes of the one allocation; equal to the plan's."""
        return self._backend.arena_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of copies of states in this machine's memory, beside the arena.

        They are 0 unless a step can be refused when updates have begun: under `check_finite`, and
        on the CPU where integers that the graph computes are checked behind an update.
        """
        return self._backend.kept_bytes

    @property
    def report(self) -> Report:
        """What a step calls, by kind, and what libraries declined to do."""
        return self._backend.report

    @property
    def rank(self) -> int:
        """The number of this process among the `ranks` that run the plan together, from 0."""
        return self._lane.wire.rank

    @property
    def ranks(self) -> int:
        """How many processes run the plan together."""
        return self._lane.wire.size

    @property
    def communication_bytes(self) -> int:
        """Bytes beside the arena in which sums over ranks are made; 0 for a plan of one rank.

        What MPI itself takes is not among them. On a GPU they are what NCCL took of its memory.
        """
        return self._backend.communication_bytes

    @property
    def parameters(self) -> MutableMapping[str, Array]:
        """Parameters by name. Reading gives a copy; assigning checks shape and dtype.

        Under `shard="states"` reading is an exchange, which all ranks take part in, and all assign
        the same: each takes its part.
        """
        return self._states({n: s for n, s in self._named.items() if s.role == "parameter"})

    @property
    def states(self) -> MutableMapping[str, Array]:
        """Everything that steps may change: parameters, moments, statistics, counters."""
        return self._states(self._named)

    def _states(self, states: Mapping[str, Held]) -> MutableMapping[str, Array]:
        return _States(
            states,
            lambda state: self._turns.take(self._read, state),
            lambda state, given: self._turns.take(self._write, state, given),
            {state.name for state in self.graph.states if state.role == "constant"},
        )

    def reset(self) -> None:
        """Give all states their initial values again."""
        initial = ((state, self._initial(state)) for state in self.graph.states)
        self._turns.take(self._replace, initial)

    def _initial(self, state: State) -> Array:
        initial = np.empty(state.shape, state.type.dtype.numpy)
        fill_initial(state, self._seed, initial, self.rank)
        return initial

    def step(
        self, feeds: Mapping[str, Any] | None = None, /, *unnamed: Any, **named: Any
    ) -> dict[str, Array]:
        """Copy inputs in, run every node, copy outputs out.

        Inputs are given by name; one with a default may be left out. Returns new arrays by output
        name, for a training program ``{"loss": array}``.
        """
        if unnamed or not isinstance(feeds, Mapping | None):
            given = ", ".join(f"{source.name}=..." for source in self.graph.inputs)
            raise FeedError(
                f"inputs are given by name, program.step({given}), or as a mapping from names to "
                f"arrays; got {quoted(feeds)}{' and more' if unnamed else ''}"
            )
        return self._turns.take(self._step, {**(feeds or {}), **named})

    def _step(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        return self._finish(self._submit(self._stage(feeds)))

    def steps(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Array]]:
        """The outputs of one step for each batch of feeds.

        On a GPU the next batch is taken and made ready while a step runs, under a plan with
        `overlap_copies` copied to the GPU as well; it is run when the next outputs are asked for,
        so states are those after the step whose outputs were given last. A fault in the next batch
        is raised then, too. Where no state changes, such a plan runs it without being asked: what
        is assigned to parameters in between counts from the output after the next.
        """
        try:
            return self._run(iter(batches))
        except TypeError:
            raise FeedError(f"batches are mappings one after another, got {batches!r}") from None

    def _run(self, batches: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Array]]:
        ready = self._next(batches)
        begun: deque[_Pending] = deque()
        while ready is not None or begun:
            while ready is not None and len(begun) <= self._backend.runs_ahead:
                try:
                    begun.append(self._turns.take(self._submit_ready, ready))
                    ready = self._next(batches)
                except Exception as error:  # raised behind the outputs of the steps before
                    begun.append(_Pending(functools.partial(_raise, error)))
                    ready = None
            yield self._turns.take(self._finish, begun.popleft())

    def _next(self, batches: Iterator[Mapping[str, Any]]) -> Callable[[], Staged] | None:
        """The next batch, made ready: what gives it, or raises what is wrong with it. None behind
        the last one."""
        try:
            staged = self._turns.take(self._stage, _mapping(next(batches)))
        except StopIteration:
            return None
        except Exception as error:
            return functools.partial(_raise, error)
        return lambda: staged

    def _submit_ready(self, ready: Callable[[], Staged]) -> _Pending:
        return self._submit(ready())

    def _finish(self, pending: _Pending) -> dict[str, Array]:
        if pending in self._pending:
            self._pending.remove(pending)
        return pending()

    def _stage(self, feeds: Mapping[str, Any]) -> Staged:
        return self._backend.stage(self._feeds.checked(feeds))

    def _submit(self, staged: Staged) -> _Pending:
        """Begin a step. Outputs that were not taken yet are taken now, but for those of the step
        before where the backend runs ahead: there is room for two steps'."""
        latest = self._latest if self._backend.runs_ahead else None
        for earlier in tuple(self._pending):
            if earlier is not latest:
                self._finish(earlier)
        self._require_whole()
        self._gathered = None
        self._latest = _Pending(self._backend.submit(staged))
        self._pending.append(self._latest)
        return self._latest

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write all states to a safetensors file, completely or not at all.

        Of several ranks, which all call it, rank 0 writes; the file is that of one process.
        Constants are part of the plan and not of the file.
        `notes` go into the file's metadata; `graphc.read_notes` gives them back.
        """
        states = self._turns.take(self._read_all)
        by_rank_0(self._lane, lambda: save_states(path, states, notes or {}))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all states; raises `CheckpointError`, changing nothing, if the file does not fit."""
        types = {name: state.type for name, state in self._named.items()}
        found = load_states(path, types)
        self._turns.take(self._load, [(self._named[name], found[name]) for name in found])

    def _load(self, given: Iterable[tuple[Held, Array]]) -> None:
        self._replace(parts_written(self.rank, given, self._backend.read))

    def _read(self, held: Held) -> Array:
        self._require_whole()
        own = self._backend.read(held.state)
        if held.first is None:
            return of_rank(self.rank, held.state, own)
        if self._gathered is None or self._gathered[0] is not held.state:
            self._gathered = held.state, whole_row(self._lane, held.state, own)
        return member_of(self._gathered[1], held).copy()

    def _read_all(self) -> dict[str, Array]:
        """Everything by name; on ranks that do not save, nothing of what all hold together."""
        self._require_whole()
        found = {name: self._read(h) for name, h in self._named.items() if h.first is None}
        together = [held for held in self._named.values() if held.first is not None]
        for state, members in itertools.groupby(together, key=lambda held: held.state):
            row = whole_row(self._lane, state, self._backend.read(state))
            if self.rank == 0:
                found.update((held.name, member_of(row, held)) for held in members)
        return {name: found[name] for name in self._named if name in found}

    def _write(self, held: Held, given: Array) -> None:
        self._require_whole()
        for state, array in parts_written(self.rank, [(held, given)], self._backend.read):
            self._put(state, array)

    def _replace(self, states: Iterable[tuple[State, Array]]) -> None:
        """Write all states; where that stops on the way, they are torn."""
        self._backend.is_torn = True
        for state, array in states:
            self._put(state, array)
        self._backend.is_torn = False

    def _put(self, state: State, array: Array) -> None:
        self._gathered = None
        self._backend.write(state, of_rank(self.rank, state, array))

    def _require_whole(self) -> None:
        if self._backend.is_torn:
            raise TornError(
                "a step or a load was stopped while it replaced states, so some are new and some "
                "are old; program.load(path) or program.reset() makes them whole again"
            )


def _raise(error: Exception) -> NoReturn:
    raise error


def _mapping(feeds: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if feeds is not None and not isinstance(feeds, Mapping):
        raise FeedError(f"feeds are a mapping from names to arrays, got {feeds!r}")
    return feeds or {}


class _Pending:
    """The outputs of a step, taken once, by who comes first."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._found: dict[str, Array] | None = None

    def __call__(self) -> dict[str, Array]:
        if self._found is None:
            self._found = self._outputs()
        return self._found


class _States(MutableMapping[str, Array]):
    """A view of some states by name."""

    def __init__(
        self,
        states: Mapping[str, Held],
        read: Callable[[Held], Array],
        write: Callable[[Held, Array], None],
        constants: Collection[str],
    ) -> None:
        self._states, self._read, self._write = states, read, write
        self._constants = constants

    def __getitem__(self, name: str) -> Array:
        self._require(name)
        return self._read(self._states[name])

    def __setitem__(self, name: str, given: Array) -> None:
        self._require(name)
        state = self._states[name]
        wanted = f"{name!r} is {state.type.dtype.numpy}{list(state.shape)}"
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise OptionError(f"{wanted}, got no array: {error}; assign an array") from None
        if isinstance(given, np.ma.MaskedArray):
            raise OptionError(f"{wanted}, got a masked array; assign .filled(number)")
        if array.shape != state.shape or array.dtype != state.type.dtype.numpy:
            raise OptionError(
                f"{wanted}, got {array.dtype}{list(array.shape)}; convert it with .astype and "
                ".reshape"
            )
        self._write(state, array)

    def __contains__(self, name: object) -> bool:
        return name in self._states

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
            if name in self._constants:
                cure = "it is a constant, whose numbers are the plan's and never change"
            raise UnknownNameError(f"there is no {name!r}; {cure}")
