"""The states of a program on its device, which other programs may share."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from graphc.errors import TornError
from graphc.ir.graph import State
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.backend import Backend
from graphc.runtime.ranks.held import Held, held_by_name, member_of, parts_written, whole_row
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import of_rank
from graphc.runtime.sharing import lent_buffers
from graphc.runtime.states import States
from graphc.runtime.turns import Turns

Array = np.ndarray[Any, np.dtype[Any]]


class Store:
    """The states in one arena, by name, and the lock on that arena.

    Programs that share states have one store, so their steps run one after another. All methods
    except `mapping` require the lock.
    """

    def __init__(self, plan: MemoryPlan, backend: Backend, lane: Lane, turns: Turns) -> None:
        self._plan, self.held = plan, held_by_name(plan.graph)
        self.turns = turns
        self.pending: deque[Callable[[], object]] = deque()
        """Functions that wait for submitted steps whose outputs have not been fetched."""
        self._constants = {state.name for state in plan.graph.states if state.role == "constant"}
        self._backend, self._lane = backend, lane
        self._backends = [backend]
        self._gathered: tuple[State, Array] | None = None
        """The row gathered last, until a state changes. Its members are usually read in sequence,
        so caching it saves one collective per member."""

    def join(self, backend: Backend) -> None:
        """Add the backend of another program, whose steps may replace the states here."""
        self._backends.append(backend)

    def lend(self, plan: MemoryPlan) -> dict[int, Any]:
        """Map the indices of a plan's state buffers to buffers here; raises `OptionError`."""
        return lent_buffers(plan, self._plan, self.held, self._backend.buffer)

    def mapping(self, names: Collection[str]) -> States:
        """Return the states with these names, which lock the arena for each access."""
        return States(
            {name: self.held[name] for name in names},
            lambda held: self.turns.take(self.read, held),
            lambda held, given: self.turns.take(self.write, held, given),
            self._constants,
        )

    def read(self, held: Held) -> Array:
        """Return a copy of a state."""
        self.require_whole()
        own = self._backend.read(held.state)
        if held.first is None:
            return of_rank(self._lane.wire.rank, held.state, own)
        if self._gathered is None or self._gathered[0] is not held.state:
            self._gathered = held.state, whole_row(self._lane, held.state, own)
        return member_of(self._gathered[1], held).copy()

    def read_all(self, names: Collection[str]) -> dict[str, Array]:
        """Return the states with these names, to be saved.

        Sharded states are returned on rank 0 only.
        """
        self.require_whole()
        named = {name: self.held[name] for name in names}
        found = {name: self.read(held) for name, held in named.items() if held.first is None}
        together = [held for held in named.values() if held.first is not None]
        for state, members in itertools.groupby(together, key=lambda held: held.state):
            row = whole_row(self._lane, state, self._backend.read(state))
            if self._lane.wire.rank == 0:
                found.update((held.name, member_of(row, held)) for held in members)
        return {name: found[name] for name in names if name in found}

    def write(self, held: Held, given: Array) -> None:
        """Replace a state."""
        self.require_whole()
        for state, array in self._parts([(held, given)]):
            self._put(state, array)

    def load(self, given: Iterable[tuple[Held, Array]]) -> None:
        """Replace several states at once.

        If that is interrupted, `require_whole` raises `TornError` from then on.
        """
        self.replace(self._parts(given))

    def replace(self, states: Iterable[tuple[State, Array]]) -> None:
        """Replace these states of this rank.

        If that is interrupted, `require_whole` raises `TornError` from then on.
        """
        self._backend.is_torn = True
        for state, array in states:
            self._put(state, array)
        for backend in self._backends:
            backend.is_torn = False

    def _parts(self, given: Iterable[tuple[Held, Array]]) -> Iterable[tuple[State, Array]]:
        return parts_written(self._lane.wire.rank, given, self._backend.read)

    def _put(self, state: State, array: Array) -> None:
        self.changing()
        for wait in self.pending:  # another program may still read the state
            with contextlib.suppress(Exception):  # raised again where its outputs are fetched
                wait()
        self._backend.write(state, of_rank(self._lane.wire.rank, state, array))

    def changing(self) -> None:
        """Record that states are about to change, which discards the cached row."""
        self._gathered = None

    def require_whole(self) -> None:
        """Raise `TornError` if an interruption has left some states new and some old."""
        if any(backend.is_torn for backend in self._backends):
            raise TornError(
                "a step or a load was interrupted while it replaced states, so some states are "
                "new and some are old; restore them with program.load(path) or program.reset()"
            )
