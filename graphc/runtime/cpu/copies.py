"""Copies between the arena and host memory on the CPU, concurrently with the nodes of a step.

On the CPU both are memory of the process, so copies cost time and save nothing. They make plans
with copies run, and test them, on any machine. As on a GPU, there is one queue for each direction:
a thread runs its copies in order. Nothing is allocated in a step.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from graphc.errors import ArenaError, GraphcError
from graphc.ir.graph import Node
from graphc.ir.op import Lane

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], Any]


class Immediate:
    """Copies that are done at once, for nodes that run alone."""

    def begins(self, node: Node, x: Array, y: Array) -> Call:
        """Return a function that copies `x` to `y`."""
        return functools.partial(np.copyto, y, x)

    def ends(self, node: Node) -> Call:
        """Return a function that does nothing."""
        return _nothing


class Concurrent:
    """Copies that run on two threads, one for each direction.

    The threads start with the first copy, and end when this object is no longer used.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._workers = {"host": _Worker("host"), "device": _Worker("device")}
        self._tickets: dict[Node, _Ticket] = {}
        self._is_settled = True

    def begins(self, node: Node, x: Array, y: Array) -> Call:
        """Return a function that starts a copy from `x` to `y`, which have equal strides."""
        worker = self._workers[node.op.copies_to]
        ticket = self._tickets[node] = _Ticket(node.label, functools.partial(np.copyto, y, x))
        return functools.partial(worker.start, ticket)

    def ends(self, node: Node) -> Call:
        """Return a function that waits for a copy. It raises `GraphcError` if the copy failed."""
        return self._tickets[node].wait

    def spans(self) -> dict[Node, tuple[int, int]]:
        """Return the start and end of the last run of each copy, in nanoseconds."""
        return {node: ticket.span for node, ticket in self._tickets.items()}

    def begin_step(self) -> None:
        """Wait for copies of an earlier step that was interrupted, and expect further ones.

        A forked child has none of the threads, so it starts its own.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            for worker in self._workers.values():
                worker.restart()
        else:
            self.settle()
        self._is_settled = False

    def settle(self) -> None:
        """Wait for copies of a step that was interrupted, which may still write states."""
        if self._process == os.getpid() and not self._is_settled:
            for worker in self._workers.values():
                worker.drain()
            self._is_settled = True

    def end_step(self) -> None:
        """Record that all copies of a step are done."""
        self._is_settled = True


class Lanes:
    """A lane for collectives and one for copies, as one."""

    def __init__(self, exchanges: Lane, copies: Lane) -> None:
        self._exchanges, self._copies = exchanges, copies

    def begins(self, node: Node, x: Array, y: Array) -> Call:
        """Return a function that starts the collective or copy of a node."""
        return self._of(node).begins(node, x, y)

    def ends(self, node: Node) -> Call:
        """Return a function that waits for the collective or copy of a node."""
        return self._of(node).ends(node)

    def _of(self, node: Node) -> Lane:
        return self._copies if node.op.copies_to else self._exchanges


class _Ticket:
    """A copy of a plan, and its state in the current step."""

    def __init__(self, what: str, copy: Call) -> None:
        self.what, self.copy = what, copy
        self.is_done = False
        self.error: BaseException | None = None
        self.span = (0, 0)
        """The start and end of the copy in nanoseconds, by `time.perf_counter_ns`."""
        self._signal = threading.Lock()  # released by the thread when the copy is done

    def open(self) -> None:
        """Mark the copy as not done."""
        self._signal.acquire(blocking=False)
        self.is_done, self.error = False, None

    def run(self) -> None:
        """Copy, and wake up the thread that waits."""
        begin = time.perf_counter_ns()
        try:
            self.copy()
        except BaseException as error:
            self.error = error
        self.span = begin, time.perf_counter_ns()
        self.is_done = True
        if self._signal.locked():
            self._signal.release()

    def wait(self) -> None:
        """Wait until the copy is done; raises `GraphcError` if it failed."""
        while not self.is_done:  # the signal of an interrupted step may come first
            self._signal.acquire()
        if self.error is not None:
            raise GraphcError(f"{self.what} failed: {self.error}") from self.error


class _Worker:
    """A thread that runs the copies of one direction in order."""

    def __init__(self, to: str) -> None:
        self._name = f"graphc copies to {to}"
        self.restart()

    def restart(self) -> None:
        """Forget the thread, and start another one with the next copy."""
        self._queue: queue.SimpleQueue[_Ticket | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run_all, args=(self._queue,), name=self._name, daemon=True
        )
        weakref.finalize(self, self._queue.put, None).atexit = False

    def start(self, ticket: _Ticket) -> None:
        """Enqueue a copy; raises `ArenaError` if no thread can be started for it."""
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:
                raise ArenaError(
                    f"no thread for copies between device and host could be started: {error}; end "
                    "other threads or processes, or plan without host_budget and host_states"
                ) from None
        ticket.open()
        self._queue.put(ticket)

    def drain(self) -> None:
        """Wait for all copies enqueued so far."""
        last = _Ticket("waiting for copies", _nothing)
        self.start(last)
        last.wait()


def _run_all(waiting: queue.SimpleQueue[_Ticket | None]) -> None:
    """Run copies until there is None instead of one."""
    while (ticket := waiting.get()) is not None:
        ticket.run()


def _nothing() -> None:
    pass
