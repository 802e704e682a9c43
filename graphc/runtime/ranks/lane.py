"""Asynchronous collectives of a rank: one thread runs them in order, concurrently with steps.

The plans of all ranks are equal, so all ranks begin the same collectives in the same order. A step
waits for a collective up to a time limit, so that a rank that has ended does not hang the others.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from graphc.errors import RanksError
from graphc.ir.graph import Node
from graphc.runtime.ranks import sums
from graphc.runtime.ranks.wire import Alone, Wire

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

RANK_TIMEOUT = 60.0
"""The default seconds that a rank waits for the others."""

SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 1e-3, 1e6
"""The least and the largest time limit in seconds; the largest is over eleven days."""


class Lane:
    """A queue of collectives of one rank, which one thread runs in order.

    All programs on a wire share one lane and its time limit. `time_limit` is in seconds.
    """

    def __init__(self, wire: Wire, time_limit: float = RANK_TIMEOUT) -> None:
        self.wire, self.time_limit = wire, time_limit
        # Weak: a ticket lives as long as the calls of a program that refer to it.
        self._tickets: WeakValueDictionary[Node, _Ticket] = WeakValueDictionary()
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], _Ticket]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.spans: dict[Node, tuple[int, int]] | None = None
        """Collective → start and end of its last run, by `time.perf_counter_ns`; None if spans are
        not recorded."""
        self._broken = ""

    @functools.cached_property
    def scratch(self) -> sums.Scratch:
        """The workspace in which sums of collectives are computed."""
        return sums.Scratch(self.wire.size)

    def begins(self, node: Node, x: Array, y: Array) -> Callable[[], None]:
        """Return the call that begins a collective from `x` to `y`.

        `y` may be `x` if the op may overwrite its operand.
        """
        ranks = node.attributes.ranks
        if ranks != self.wire.size:
            raise RanksError(
                f"{node.label} needs {ranks} ranks, but this program runs on {self.wire.size}; "
                f"plan with ranks={self.wire.size}, or start {ranks} processes"
            )
        work = self._work(node, x, y)
        ticket = self._tickets[node] = _Ticket(node.label, node)
        needs_copy = node.op.may_overwrite and x.ctypes.data != y.ctypes.data

        def begin() -> None:
            if needs_copy:
                np.copyto(y, x)
            self._put(work, ticket)

        return begin

    def ends(self, node: Node) -> Callable[[], None]:
        """Return the call that waits for a collective; it raises `RanksError` on failure."""
        ticket = self._tickets[node]
        return lambda: self._wait(ticket)

    def run(self, what: str, function: Callable[[], T]) -> T:
        """Run a function after the collectives queued so far, and return its result."""
        return function() if self.wire.size == 1 else self.start(what, function)()

    def start(self, what: str, function: Callable[[], T]) -> Callable[[], T]:
        """Enqueue a function after the collectives queued so far.

        All ranks do so in the same order. Returns a call that waits for the result of the function.
        """
        ticket = _Ticket(what)
        self._put(function, ticket)

        def wait() -> T:
            result: T = self._wait(ticket)
            return result

        return wait

    def stopped(self) -> None:
        """Mark the lane as broken if a step ended by an error with collectives in flight.

        Further steps must not run: they would take the results of those collectives for their own.
        """
        if not self._broken and any(ticket.is_open for ticket in self._tickets.values()):
            self._broken = (
                f"a step of rank {self.wire.rank} of {self.wire.size} was interrupted during its "
                "collectives, and the other ranks may have continued. Restart all ranks from the "
                "last checkpoint"
            )

    def _work(self, node: Node, x: Array, y: Array) -> Callable[[], None]:
        wire, scratch = self.wire, self.scratch
        match node.op.name:
            case "all_reduce":
                return sums.all_reduce(wire, scratch, y)
            case "reduce_scatter":
                return sums.reduce_scatter(wire, scratch, x, y)
            case "all_gather":
                return sums.all_gather(wire, x, y)
            case _:
                return sums.broadcast(wire, y, node.attributes.root)

    def _put(self, work: Callable[[], Any], ticket: _Ticket) -> None:
        if self._broken:
            raise RanksError(self._broken)
        if self.wire.size == 1:
            work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="graphc ranks", daemon=True)
            self._thread.start()
        ticket.is_open = True
        self._waiting.put((work, ticket))

    def _loop(self) -> None:
        while True:
            self._run(*self._waiting.get())

    def _run(self, work: Callable[[], Any], ticket: _Ticket) -> None:
        started = time.perf_counter_ns()
        try:
            with np.errstate(all="ignore"):  # as for kernels
                found = work()
            if self.spans is not None and ticket.node is not None:
                self.spans[ticket.node] = started, time.perf_counter_ns()
            ticket.results.put((found, None))
        except BaseException as error:
            ticket.results.put((None, error))

    def _wait(self, ticket: _Ticket) -> Any:
        wire = self.wire
        if wire.size == 1 or not ticket.is_open:
            return None
        if self._broken:
            raise RanksError(self._broken)
        try:
            result, error = ticket.results.get(timeout=self.time_limit)
        except queue.Empty:
            self._broken = (
                f"rank {wire.rank} of {wire.size} waited {self.time_limit:g} s for the others in "
                f"{ticket.what}; another rank has exited or hangs, or takes longer than "
                "rank_timeout. Restart all ranks from the last checkpoint"
            )
            raise RanksError(self._broken) from None
        if error is not None:
            self._broken = (
                f"rank {wire.rank} of {wire.size} lost its connection to the others in "
                f"{ticket.what}: {error}. Restart all ranks from the last checkpoint"
            )
            raise RanksError(self._broken) from error
        ticket.is_open = False
        return result


class _Ticket:
    """A collective that was begun: its name and its results.

    `is_open` is True from its beginning until the first wait for it. Later waits return at once.
    """

    def __init__(self, what: str, node: Node | None = None) -> None:
        self.what, self.node, self.is_open = what, node, False
        self.results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()


ALONE = Lane(Alone())
"""The lane of programs of one rank."""
