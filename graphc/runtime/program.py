"""A program: a plan bound to one arena on one device. Bind once, step many times."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.devices.device import MOST_THREADS
from graphc.errors import (
    FeedError,
    OptionError,
    UnknownNameError,
    check_seed,
    did_you_mean,
    quoted,
    whole_number,
)
from graphc.ir.graph import State
from graphc.ir.types import TensorType
from graphc.keywords import checks_keywords
from graphc.plans.memory_plan import MemoryPlan, as_plan
from graphc.plans.names import count, listed
from graphc.runtime.arena import check_outputs
from graphc.runtime.backend import Backend, Outputs, Report, Staged
from graphc.runtime.checkpoint import load_states, save_states
from graphc.runtime.cpu.backend import CpuBackend
from graphc.runtime.feeds import NO_RESTS, Feeds, Rests
from graphc.runtime.index_ranges import IndexRanges
from graphc.runtime.initial import fill_initial
from graphc.runtime.ranks.held import held_by_name
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import by_rank_0, lane_of
from graphc.runtime.store import Store
from graphc.runtime.turns import Turns

Array = np.ndarray[Any, np.dtype[Any]]


class StepOutputs(dict[str, Array]):
    """The outputs of a step by name; an unknown name raises `UnknownNameError`."""

    def __missing__(self, name: object) -> NoReturn:
        names = ", ".join(map(repr, self)) or "none"
        raise UnknownNameError(
            f"the step has no output {name!r}{did_you_mean(name, self, before='; ')}; its outputs "
            f"are {names}, and compile(outputs={{...}}) adds others"
        )


NAMES = 6
"""The maximum number of inputs, and of outputs, in the repr of a program."""


class Program:
    """One graph bound to one device.

    `plan` gives the offset of every buffer in the arena. Nothing else is allocated except
    `host_bytes` and `kept_bytes`, which are 0 for most programs.

    If a step raises, all states are unchanged, unless it was stopped during its updates. In that
    case, reading states, `save` and further steps raise `TornError` until `load` or `reset`. A lock
    serializes threads; see docs/training.md.

    With `poison`, every byte that belongs to no live value is NaN, which exposes a wrong plan. With
    `check_finite`, a step that computes NaN or infinity raises `NonFiniteError` and leaves all
    states unchanged. Without a `backend`, the plan runs on the CPU, with native kernels on
    `threads` threads. Raises `OptionError` for a GPU plan without a `backend`.

    With an `owner`, the states are those of that program: they have no bytes in this arena, and one
    lock serializes the steps of both programs. On a GPU, the caller has passed these states to the
    `backend`.

    With `within`, the program uses the whole arena of another program, which is at least as large
    and has the same states at the same offsets. On a GPU, the caller has passed it to the
    `backend`.
    """

    @checks_keywords
    def __init__(
        self,
        plan: MemoryPlan,
        seed: int = 0,
        poison: bool = False,
        check_finite: bool = False,
        backend: Backend | None = None,
        threads: int | None = None,
        lane: Lane | None = None,
        owner: Program | None = None,
        within: Program | None = None,
    ) -> None:
        self.plan = as_plan("Program: plan", plan)
        self.graph = plan.graph
        self._seed = check_seed(seed)
        if threads is not None:
            whole_number("threads", threads, most=MOST_THREADS)
        on_gpu = plan.device.kind == "cuda"
        if on_gpu and backend is None:
            raise OptionError(
                f"the plan is for {plan.device.name}, a GPU; run it with graphc.bind on a machine "
                "with a GPU, or plan with device='cpu'"
            )
        self._lane = lane_of(plan, seed, lane)
        ranges = IndexRanges(plan.graph)
        self._feeds = Feeds(plan.graph, check_finite, ranges.fed)
        around = None if within is None else within._backend
        self._backend: Backend = backend or CpuBackend(
            plan, poison, check_finite, ranges.computed, threads, self._lane,
            None if owner is None else owner.lend(plan),
            around if isinstance(around, CpuBackend) else None,
        )  # fmt: skip
        check_outputs(plan)
        if (sharing := owner or within) is None:
            self._store = Store(plan, self._backend, self._lane, Turns(on_gpu))
        else:
            self._store = sharing._store
            if within is not None:  # other programs that share states do not change them
                self._store.join(self._backend)
        self._is_owner, self._turns = sharing is None, self._store.turns
        self._names = tuple(held_by_name(self.graph))
        self._latest: _Pending | None = None
        self._steps_done = 0
        if sharing is None:
            self.reset()
        else:
            for state in self.graph.states:
                if state.role == "constant":
                    self._backend.write(state, self._initial(state))

    def __repr__(self) -> str:
        def shown(types: Mapping[str, TensorType]) -> str:
            return listed([f"{name} {type}" for name, type in types.items()], NAMES) or "none"

        return (
            f"<Program on {self.plan.device.name}: arena {format_bytes(self.arena_bytes)}; "
            f"inputs {shown(self.inputs)}; outputs {shown(self.outputs)}; "
            f"{count(self._steps_done, 'step')} done>"
        )

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The inputs of a step by name, with their types."""
        return {source.name: source.type for source in self.graph.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The outputs of a step by name, with their types."""
        return {name: value.type for name, value in self.graph.outputs.items()}

    @property
    def backend(self) -> Backend:
        """The object that runs the plan on the device."""
        return self._backend

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena: the plan's, less those of states of another program."""
        return self._backend.arena_bytes

    @property
    def host_bytes(self) -> int:
        """The bytes of host memory for values that the plan copies there."""
        return self._backend.host_bytes

    @property
    def kept_bytes(self) -> int:
        """The bytes of backup copies of states in host memory, outside the arena.

        They are 0 unless a check can fail after updates have begun: with `check_finite`, and on the
        CPU if integers that the graph computes are checked after an update.
        """
        return self._backend.kept_bytes

    @property
    def report(self) -> Report:
        """The number of calls of a step, by kind, and the requests that libraries declined."""
        return self._backend.report

    @property
    def rank(self) -> int:
        """The rank of this process, from 0 to `ranks` - 1."""
        return self._lane.wire.rank

    @property
    def ranks(self) -> int:
        """The number of processes that run the plan together."""
        return self._lane.wire.size

    @property
    def communication_bytes(self) -> int:
        """The bytes of workspace for collectives, outside the arena; 0 for a plan of one rank.

        Memory of MPI itself is not included. On a GPU, it is device memory that NCCL allocated.
        """
        return self._backend.communication_bytes

    @property
    def parameters(self) -> MutableMapping[str, Array]:
        """The parameters by name. Reading returns a copy; assigning checks shape and dtype.

        With `shard="states"`, reading is a collective in which all ranks take part. All ranks
        assign the same array, and each stores its own part.
        """
        held = self._store.held
        return self._store.mapping([n for n in self._names if held[n].role == "parameter"])

    @property
    def states(self) -> MutableMapping[str, Array]:
        """Everything that steps may change, by name: parameters, moments, statistics, counters."""
        return self._store.mapping(self._names)

    def lend(self, plan: MemoryPlan) -> dict[int, Any]:
        """Map the buffers of a plan's states to the states of this program, on its device.

        A program of that plan then uses them without a copy. Raises `OptionError` if that is
        impossible.
        """
        return self._store.lend(plan)

    def reset(self) -> None:
        """Reset all states to their initial values, and the step counter to 0.

        Raises `OptionError` if the states belong to another program.
        """
        if not self._is_owner:
            raise OptionError("the states belong to another program; reset that program")
        initial = ((state, self._initial(state)) for state in self.graph.states)
        self._turns.take(self._store.replace, initial)
        self.forget_steps()

    def forget_steps(self) -> None:
        """Set the step counter, which the printed form shows, to 0."""
        self._steps_done = 0

    def _initial(self, state: State) -> Array:
        initial = np.empty(state.shape, state.type.dtype.numpy)
        fill_initial(state, self._seed, initial, self.rank)
        return initial

    def step(
        self, feeds: Mapping[str, Any] | None = None, /, *unnamed: Any, **named: Any
    ) -> dict[str, Array]:
        """Run one step: copy feeds to the inputs, run every node, return the outputs.

        Inputs are passed by name; an input with a default may be omitted. Arrays of another dtype
        and torch tensors are converted if that changes no number; else `FeedError` is raised.
        Returns new arrays by output name: ``{"loss": array}`` for a training program.
        """
        if unnamed or not isinstance(feeds, Mapping | None):
            given = ", ".join(f"{source.name}=..." for source in self.graph.inputs)
            raise FeedError(
                f"inputs must be given by name, as in program.step({given}), or as a mapping from "
                f"names to arrays; got {quoted(feeds)}{' and more' if unnamed else ''}"
            )
        return self.padded_step({**(feeds or {}), **named}, NO_RESTS)

    def rests(self, pad: Mapping[str, float]) -> Rests:
        """Return the numbers that pad inputs, checked, for `padded_step`; raises `FeedError`."""
        return self._feeds.rests(pad)

    def padded_step(self, feeds: Mapping[str, Any], rests: Rests) -> dict[str, Array]:
        """Run one step on feeds that may be smaller than the inputs in `rests`."""
        return self._turns.take(self._step, feeds, rests)

    def _step(self, feeds: Mapping[str, Any], rests: Rests) -> dict[str, Array]:
        return self._finish(self._submit(self._stage(feeds, rests)))

    def steps(
        self, batches: Iterable[Mapping[str, Any]], pad: Mapping[str, float] | None = None
    ) -> Iterator[dict[str, Array]]:
        """Yield the outputs of one step for each batch of feeds.

        `pad` maps names of inputs to numbers. A smaller array for such an input, as in the last
        batch of an epoch, is padded with that number at the end of each axis. A loss that ignores a
        label then has the same value and gradients for the padded batch; see docs/lengths.md.

        On a GPU, the next batch is fetched and staged while a step runs. A plan with
        `overlap_copies` also copies that batch to the GPU. The step on that batch runs when the
        next outputs are requested, so states read in between are those after the last step. An
        error in the next batch is also raised then.

        If no state changes, a plan with `overlap_copies` runs the next step ahead of the request.
        Parameters that are assigned in between then affect the output after the next.
        """
        rests = self.rests({} if pad is None else pad)
        try:
            given = iter(batches)
        except TypeError:
            raise FeedError(f"batches must be an iterable of mappings, got {batches!r}") from None
        return run_batches(given, lambda feeds: (self, rests), int(self._backend.runs_ahead))

    def _finish(self, pending: _Pending) -> dict[str, Array]:
        if pending in self._store.pending:
            self._store.pending.remove(pending)
        return StepOutputs(pending())

    def staged(self, feeds: Mapping[str, Any], rests: Rests) -> Submission:
        """Stage feeds, and return a function that submits their step."""
        staged = self._turns.take(self._stage, feeds, rests)

        def submit() -> Callable[[], dict[str, Array]]:
            pending = self._turns.take(self._submit, staged)
            return functools.partial(self._turns.take, self._finish, pending)

        return submit

    def _stage(self, feeds: Mapping[str, Any], rests: Rests) -> Staged:
        return self._backend.stage(self._feeds.checked(feeds, rests))

    def _submit(self, staged: Staged) -> _Pending:
        """Begin a step, after fetching the pending outputs of earlier steps.

        If the backend runs ahead, it has buffers for the outputs of two steps. The outputs of the
        previous step then stay pending.
        """
        latest, store = self._latest if self._backend.runs_ahead else None, self._store
        for earlier in tuple(store.pending):
            if earlier is not latest:
                store.pending.remove(earlier)
                earlier()
        store.require_whole()
        store.changing()
        self._latest = _Pending(self._backend.submit(staged))
        self._steps_done += 1
        store.pending.append(self._latest)
        return self._latest

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write all states to a safetensors file, completely or not at all.

        All ranks call it, and rank 0 writes. The file does not depend on the number of ranks.
        Constants are part of the plan and are not saved. `notes` are stored in the metadata of the
        file; `graphc.read_notes` returns them.
        """
        states = self._turns.take(self._store.read_all, self._names)
        by_rank_0(self._lane, lambda: save_states(path, states, notes or {}))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read all states from a file.

        Raises `CheckpointError`, and changes nothing, if the file does not match the states.
        """
        held = {name: self._store.held[name] for name in self._names}
        found = load_states(path, {name: each.type for name, each in held.items()})
        self._turns.take(self._store.load, [(held[name], found[name]) for name in found])


Chosen = Callable[[Mapping[str, Any]], tuple[Program, Rests]]
"""A function from feeds to the program that runs them, and the numbers that pad them."""


def run_batches(
    batches: Iterator[Mapping[str, Any]], chosen: Chosen, ahead: int = 0
) -> Iterator[dict[str, Array]]:
    """Yield the outputs of a step for each batch; the next one is staged while a step runs.

    Up to `ahead` steps are submitted before their outputs are requested.
    """
    ready = _next(batches, chosen)
    begun: deque[Callable[[], dict[str, Array]]] = deque()
    while ready is not None or begun:
        while ready is not None and len(begun) <= ahead:
            try:
                begun.append(ready())
                ready = _next(batches, chosen)
            except Exception as error:  # raised after the outputs of earlier steps
                begun.append(functools.partial(_raise, error))
                ready = None
        yield begun.popleft()()


Submission = Callable[[], Callable[[], dict[str, Array]]]
"""A function that submits a staged step, and returns a function that fetches its outputs."""


def _next(batches: Iterator[Mapping[str, Any]], chosen: Chosen) -> Submission | None:
    """Stage the next batch, and return its submission, which raises any error.

    Returns None after the last batch.
    """
    try:
        feeds = _mapping(next(batches))
        program, rests = chosen(feeds)
        return program.staged(feeds, rests)
    except StopIteration:
        return None
    except Exception as error:
        return functools.partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error


def _mapping(feeds: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if feeds is not None and not isinstance(feeds, Mapping):
        raise FeedError(f"feeds must map names to arrays, got {feeds!r}")
    return feeds or {}


class _Pending:
    """The outputs of a submitted step: the first call fetches them, later calls return the same."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._found: dict[str, Array] | None = None

    def __call__(self) -> dict[str, Array]:
        if self._found is None:
            self._found = self._outputs()
        return self._found
