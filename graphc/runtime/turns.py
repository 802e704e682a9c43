"""A lock on the arena of a program: one thread at a time, in the process that made the program."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from graphc.errors import GpuUnavailable, ProgramBusy

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """A lock on the arena of a program, one per process. Other threads wait for it.

    A forked child has its own copy of a CPU arena and its own lock. CUDA does not work in a forked
    child, so for a GPU arena `take` raises `GpuUnavailable` there.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu, self._process = on_gpu, os.getpid()
        self._turns: dict[int, _Turn] = {}

    def take(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` with the arena locked, and return its result.

        Raises `ProgramBusy` if the same thread already has the lock: waiting would deadlock.
        """
        turn = self._turn()
        with turn.lock:
            if turn.is_taken:
                raise ProgramBusy(
                    "this thread is already running a step or a copy of the program; call the "
                    "program after it ends, not from a signal handler, a feed or the code of an "
                    "op"
                )
            turn.is_taken = True
            try:
                return work(*args, **kwargs)
            finally:
                turn.is_taken = False

    def _turn(self) -> _Turn:
        """Return the lock of this process.

        A forked child cannot use the lock of its parent: the thread that has acquired it may not
        exist in the child.
        """
        process = os.getpid()
        if self._on_gpu and process != self._process:
            raise GpuUnavailable(
                "this process was forked after the program was created, and CUDA does not "
                "support forked processes",
                "create the program in the process that uses it, and start that process with "
                "multiprocessing.get_context('spawn')",
            )
        # `setdefault` is atomic, so all threads of a child get the same lock.
        return self._turns.get(process) or self._turns.setdefault(process, _Turn())


class _Turn:
    """The arena lock of one process. It is reentrant, so that `is_taken` can detect nested use."""

    def __init__(self) -> None:
        self.lock, self.is_taken = threading.RLock(), False
