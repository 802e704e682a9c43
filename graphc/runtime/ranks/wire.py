"""What carries bytes between ranks: the few things that collectives are made of.

All ranks make the same calls in the same order. Arrays are one-dimensional, of bytes, and in one
piece. A wire is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Wire(Protocol):
    """The connection of one rank, of `size`, with the others."""

    rank: int
    size: int

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        """Send the bytes of `sent` from starts[j] on, lengths[j] of them, to each rank j.

        What rank i sends arrives behind what the ranks before i send: as many bytes from each as
        this rank sends to itself.
        """
        ...

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Each rank i has the bytes of `whole` from starts[i] on; then all ranks have all."""
        ...

    def broadcast(self, whole: Array, root: int) -> None:
        """All ranks get the bytes of rank `root`."""
        ...

    def tell(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, by rank. Not for steps: it allocates."""
        ...

    def abort(self) -> None:
        """End all ranks."""
        ...


class Alone:
    """The wire of a program that has one rank."""

    rank, size = 0, 1

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        np.copyto(received[: lengths[0]], sent[starts[0] : starts[0] + lengths[0]])

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        pass

    def broadcast(self, whole: Array, root: int) -> None:
        pass

    def tell(self, message: bytes) -> list[bytes]:
        return [message]

    def abort(self) -> None:
        pass
