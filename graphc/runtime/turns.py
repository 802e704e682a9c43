"""Who may use a program's arena: one thread at a time, in the process that it was made for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from graphc.errors import GpuUnavailable, ProgramBusy

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Lets threads use an arena one after another; others wait.

    A child that was forked has a copy of an arena of the CPU. It has none of a GPU's, where `take`
    raises `GpuUnavailable`.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu, self._process = on_gpu, os.getpid()
        self._turns: dict[int, _Turn] = {}

    def take(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with the arena to itself.

        Raises `ProgramBusy` where the same thread is at it already: there, waiting has no end.
        """
        turn = self._turn()
        with turn.lock:
            if turn.is_taken:
                raise ProgramBusy(
                    "the program is in the middle of a step or a copy that this thread has begun; "
                    "call it when that is over, not from a signal's handler, a feed's or an op's "
                    "own code"
                )
            turn.is_taken = True
            try:
                return work(*args, **kwargs)
            finally:
                turn.is_taken = False

    def _turn(self) -> _Turn:
        """That of this process: in a child, the thread that had the parent's may not be there."""
        process = os.getpid()
        if self._on_gpu and process != self._process:
            raise GpuUnavailable(
                "this process was forked from the one that made the program, and CUDA does not "
                "work in such a process",
                "make the program in the process that uses it, and start that one anew, with "
                "multiprocessing.get_context('spawn')",
            )
        # One operation, so that the threads of a child, too, find one lock.
        return self._turns.get(process) or self._turns.setdefault(process, _Turn())


class _Turn:
    """Who is at an arena in one process."""

    def __init__(self) -> None:
        self.lock, self.is_taken = threading.RLock(), False
