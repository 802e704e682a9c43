"""The transport interface between ranks: the primitives from which collectives are built.

All ranks make the same calls in the same order. Arrays are one-dimensional, contiguous, and of
bytes. A wire is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class Wire(Protocol):
    """The connection of one of `size` ranks with all others."""

    rank: int
    size: int

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        """Send `lengths[j]` bytes of `sent` from `starts[j]` on to each rank j (an all-to-all).

        `received` has the pieces in the order of their senders. Every rank sends this rank as many
        bytes as this rank sends to itself.
        """
        ...

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Gather `whole` on all ranks, in place.

        Each rank i provides the `lengths[i]` bytes from `starts[i]` on.
        """
        ...

    def broadcast(self, whole: Array, root: int) -> None:
        """Replace `whole` on all ranks by `whole` of rank `root`."""
        ...

    def tell(self, message: bytes) -> list[bytes]:
        """Send a message to all ranks, and return the messages of all ranks, by rank.

        It allocates memory, so steps do not use it.
        """
        ...

    def abort(self) -> None:
        """End the processes of all ranks."""
        ...


class Alone:
    """The wire of a program of one rank."""

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
