"""What graphc asks of a GPU.

Everything goes through streams, in the order in which it is enqueued there. Memory is allocated by
`allocate` and `pinned` only, code by `load` only. graphc.runtime.gpu.cuda does all this with CuPy;
tests do it on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphc.runtime.gpu.bind import BoundCall, BoundGemm

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""An array in memory of the host."""

Stream = Any
Event = Any


class Accelerator(Protocol):
    """One GPU, with its memory and its streams."""

    communication_bytes: int
    """Memory of the GPU that connections with other ranks have taken."""

    def active(self) -> AbstractContextManager[Any]:
        """A context in which calls of this thread go to this GPU."""

    def allocate(self, size: int) -> int:
        """The address of so many bytes; raises `ArenaError` where they do not fit."""

    def pinned(self, size: int) -> Bytes:
        """Memory of the host that copies need not wait for."""

    def serves(self, call: BoundGemm) -> bool:
        """Whether the library has an algorithm for a product; if so, get ready for it."""

    def load(self, calls: Iterable[BoundCall]) -> None:
        """Get ready for calls: compile and load their kernels."""

    def stream(self) -> Stream:
        """A new stream of this GPU."""

    def run(self, call: BoundCall, stream: Stream) -> None:
        """Enqueue a kernel or a product."""

    def fill(self, address: int, size: int, byte: int, stream: Stream) -> None:
        """Enqueue setting bytes to one number."""

    def upload(self, address: int, source: Bytes, stream: Stream) -> None:
        """Enqueue a copy of host memory to an address; `source` stays as it is until it is done."""

    def download(self, target: Bytes, address: int, stream: Stream) -> None:
        """Enqueue a copy of the bytes at an address to host memory."""

    def copy(self, target: int, source: int, size: int, stream: Stream) -> None:
        """Enqueue a copy of so many bytes from one address to another, which do not overlap."""

    def record(self, stream: Stream) -> Event:
        """An event that happens when all that is enqueued so far is done."""

    def mark(self, stream: Stream) -> Event:
        """An event that also keeps when it happened."""

    def seconds_between(self, start: Event, end: Event) -> float:
        """The seconds between two marks that have happened."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is enqueued on the stream from now on starts after the event."""

    def synchronize(self, event: Event) -> None:
        """Wait for an event."""

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        """What `enqueue` enqueues, not run but kept as a graph: a call that enqueues all of it on
        the stream. Other streams join by events."""
