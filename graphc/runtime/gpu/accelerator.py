"""The interface to a GPU.

All work goes through streams, which run it in the order of enqueuing. Only `allocate` and `pinned`
allocate memory, and only `load` loads code. `graphc.runtime.gpu.cuda` implements the interface with
CuPy; tests implement it on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphc.runtime.gpu.bind import BoundCall, BoundGemm

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
"""An array in host memory."""

Stream = Any
Event = Any


class Accelerator(Protocol):
    """One GPU, with its memory and its streams."""

    communication_bytes: int
    """The bytes of GPU memory that connections with other ranks use."""

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which this is the current GPU of the thread."""

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes and return their address; raises `ArenaError` if that fails."""

    def pinned(self, size: int) -> Bytes:
        """Allocate pinned host memory, for asynchronous copies; raises `ArenaError`."""

    def serves(self, call: BoundGemm) -> bool:
        """Return True if the library has an algorithm for a product, and prepare to run it."""

    def load(self, calls: Iterable[BoundCall]) -> None:
        """Compile and load the kernels of calls."""

    def stream(self) -> Stream:
        """Create a stream."""

    def run(self, call: BoundCall, stream: Stream) -> None:
        """Enqueue a kernel, a library call, a collective, or a copy to or from pinned memory."""

    def fill(self, address: int, size: int, byte: int, stream: Stream) -> None:
        """Enqueue a fill of `size` bytes with one value."""

    def upload(self, address: int, source: Bytes, stream: Stream) -> None:
        """Enqueue a copy of host memory to an address; do not change `source` until it is done."""

    def download(self, target: Bytes, address: int, stream: Stream) -> None:
        """Enqueue a copy of the bytes at an address to host memory."""

    def copy(self, target: int, source: int, size: int, stream: Stream) -> None:
        """Enqueue a copy of `size` bytes between two addresses; the ranges must not overlap."""

    def record(self, stream: Stream) -> Event:
        """Record an event, which is complete when all work enqueued so far is done."""

    def mark(self, stream: Stream) -> Event:
        """Record an event with a time stamp on a stream, for `seconds_between`."""

    def seconds_between(self, start: Event, end: Event) -> float:
        """Return the seconds between two completed marks."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Make work that is enqueued on the stream from now on wait until an event is complete."""

    def synchronize(self, event: Event) -> None:
        """Block until an event is complete."""

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture the work that `enqueue` enqueues as a graph, without running it.

        Returns a call that enqueues the graph on the stream. Other streams join by events.
        """
