"""Ranks as MPI processes. This is the only file that imports mpi4py, and only when it is used."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphc.errors import DependencyError

Array = np.ndarray[Any, np.dtype[Any]]

SPINS = 200
"""The number of polls of a request before the thread sleeps between polls."""

NAP = 5e-5
"""Seconds that the thread sleeps between polls, which leaves the processor to ranks that
compute."""


class MpiWire:
    """The connection of a process with all others that the same `mpirun` started."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise DependencyError(
                f"several ranks on CPUs require mpi4py and an MPI library ({error}); run pip "
                "install 'graphc-compiler[mpi]'"
            ) from error
        self._mpi = MPI
        # A separate communicator, so that messages of user code do not interfere.
        self._world = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self._end_all_with_this_one()

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        own, byte = lengths[self.rank], self._mpi.BYTE
        counts, places = [own] * self.size, [own * rank for rank in range(self.size)]
        self._finish(
            self._world.Ialltoallv([sent, lengths, starts, byte], [received, counts, places, byte])
        )

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        pieces = [whole, lengths, starts, self._mpi.BYTE]
        self._finish(self._world.Iallgatherv(self._mpi.IN_PLACE, pieces))

    def broadcast(self, whole: Array, root: int) -> None:
        self._finish(self._world.Ibcast([whole, self._mpi.BYTE], root))

    def tell(self, message: bytes) -> list[bytes]:
        found: list[bytes] = self._world.allgather(message)
        return found

    def abort(self) -> None:
        self._world.Abort(1)

    def _end_all_with_this_one(self) -> None:
        """Abort all ranks if an error ends this process; MPI would otherwise wait for them."""
        told = sys.excepthook

        def tell_and_abort(*error: Any) -> None:
            told(*error)
            sys.stderr.flush()
            self.abort()

        sys.excepthook = tell_and_abort

    def _finish(self, request: Any) -> None:
        for _ in range(SPINS):
            if request.Test():
                return
        while not request.Test():
            time.sleep(NAP)
