"""Ranks as threads of one process, for tests and for trying a plan of several ranks.

They exchange bytes by copying from each other's arrays between two barriers. This does not speed up
training: the threads share the memory of the processor and Python's global lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from graphc.errors import RanksError

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")


class _Table:
    """The data that ranks share with each other, and the barrier that synchronizes them."""

    def __init__(self, size: int, time_limit: float) -> None:
        self.given: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=time_limit)


class ThreadWire:
    """The connection of a thread with the other threads of its table."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank, self.size, self._table = rank, size, table

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        own = lengths[self.rank]

        def take() -> None:
            for other, (given, begin, length) in enumerate(self._table.given):
                if length[self.rank] != own:
                    raise RanksError(
                        f"rank {other} sends {length[self.rank]} bytes, but rank {self.rank} "
                        f"expects {own}"
                    )
                first = begin[self.rank]
                np.copyto(received[other * own : (other + 1) * own], given[first : first + own])

        self._meet((sent, starts, lengths), take)

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        def take() -> None:
            for other, given in enumerate(self._table.given):
                place = slice(starts[other], starts[other] + lengths[other])
                if other != self.rank:
                    np.copyto(whole[place], given[place])

        self._meet(whole, take)

    def broadcast(self, whole: Array, root: int) -> None:
        def take() -> None:
            if self.rank != root:
                np.copyto(whole, self._table.given[root])

        self._meet(whole, take)

    def tell(self, message: bytes) -> list[bytes]:
        return self._meet(message, lambda: list(self._table.given))

    def abort(self) -> None:
        self._table.barrier.abort()

    def _meet(self, given: Any, take: Callable[[], T]) -> T:
        """Publish `given`, call `take` after all ranks have published, and wait for all to take."""
        self._table.given[self.rank] = given
        try:
            self._table.barrier.wait()
            found = take()
            self._table.barrier.wait()
        except threading.BrokenBarrierError:
            raise RanksError("a rank has exited before the others") from None
        return found


def wires(size: int, time_limit: float = 60.0) -> list[ThreadWire]:
    """Create one wire for each of `size` ranks, each for use by one thread."""
    table = _Table(size, time_limit)
    return [ThreadWire(rank, size, table) for rank in range(size)]


def on_ranks(size: int, work: Callable[[ThreadWire], T], time_limit: float = 60.0) -> list[T]:
    """Run `work` on each of `size` ranks, and return its results by rank.

    If a rank raises, the other ranks end too, and the error that was raised first is raised here.
    """
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def run(wire: ThreadWire) -> None:
        try:
            results[wire.rank] = work(wire)
        except BaseException as error:
            errors.append((wire.rank, error))
            wire.abort()

    threads = [threading.Thread(target=run, args=(wire,)) for wire in wires(size, time_limit)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results
