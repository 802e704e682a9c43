"""Copies between the memory of a device and of its host: two CUDA streams, or plain copies.

A copy begins with `begin` and has ended for later work on the device after `wait`. On a GPU, the
events of each direction are in the order of their stream, and computation has the stream that is
current when `begin` and `wait` are called.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Literal, Protocol

import numpy as np
import torch

from graphc.byte_sizes import exact_bytes
from graphc.errors import TorchError

Direction = Literal["out", "in"]


class Lanes(Protocol):
    """The two directions of a link; events are opaque."""

    def begin(
        self, direction: Direction, to: torch.Tensor, source: torch.Tensor, after: Iterable[Any]
    ) -> Any:
        """Begin a copy after the work issued so far and after `after`, and return its event."""

    def wait(self, event: Any) -> None:
        """Let later work on the device start after an event."""

    def finish(self, event: Any) -> None:
        """Block the caller until an event has happened."""

    def now(self) -> Any:
        """Return the event at which the work issued so far has ended."""

    def memory(self, size: int) -> torch.Tensor:
        """Return host memory of `size` bytes, suited for copies."""


def lanes_of(device: torch.device) -> Lanes:
    """Return the lanes between a device and its host."""
    return Streams(device) if device.type == "cuda" else PlainCopies()


class PlainCopies:
    """Copies on a CPU, which have ended when `begin` returns."""

    def begin(
        self, direction: Direction, to: torch.Tensor, source: torch.Tensor, after: Iterable[Any]
    ) -> None:
        """Copy the bytes."""
        to.copy_(source)

    def wait(self, event: None) -> None:
        """Return at once."""

    def finish(self, event: None) -> None:
        """Return at once."""

    def now(self) -> None:
        """Return the event of nothing."""

    def memory(self, size: int) -> torch.Tensor:
        """Return plain memory, which torch's allocator does not count as memory of the device."""
        return torch.from_numpy(np.empty(size, np.uint8))


class Streams:
    """Copies by two streams of a GPU beside the one that computes.

    Torch's caching allocator may give a freed block to the next tensor of the stream on which the
    block was allocated, without waiting for the device. All tensors here are allocated on the
    computing stream. `begin` lets a copy start after the work issued so far on that stream, so a
    block for a copy to the device is not written while its last owner is still read. `wait` lets
    the computing stream wait for a copy, and callers free a tensor only after it. So the next owner
    of its block, which the same stream fills, starts after the copy. `Tensor.record_stream` would
    give the same guarantee, but frees a block at an unknown later time, when no budget holds.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.streams = {name: torch.cuda.Stream(device) for name in ("out", "in")}

    def begin(
        self, direction: Direction, to: torch.Tensor, source: torch.Tensor, after: Iterable[Any]
    ) -> Any:
        """Issue a copy on the stream of its direction."""
        if torch.cuda.is_current_stream_capturing():
            raise TorchError(
                "the plan copies tensors to host memory, which a CUDA graph does not capture; run "
                "the step without a CUDA graph, or plan without host_budget"
            )
        stream = self.streams[direction]
        stream.wait_event(self.now())
        for event in after:
            stream.wait_event(event)
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
        return stream.record_event()

    def wait(self, event: Any) -> None:
        """Let the computing stream wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def finish(self, event: Any) -> None:
        """Block until the device has reached the event."""
        event.synchronize()

    def now(self) -> Any:
        """Record an event on the computing stream."""
        return torch.cuda.current_stream(self.device).record_event()

    def memory(self, size: int) -> torch.Tensor:
        """Return pinned memory of `size` bytes; raises `TorchError` if there is not enough.

        Torch's own allocator of pinned memory rounds sizes up to powers of two.
        """
        whole = -(-size // PAGE) * PAGE
        try:
            array = np.empty(whole + PAGE, np.uint8)
        except MemoryError as error:
            raise _not_pinned(size, str(error)) from None
        # No other registered memory has one of these pages.
        begin = -array.ctypes.data % PAGE
        with torch.cuda.device(self.device):
            code = int(torch.cuda.cudart().cudaHostRegister(array.ctypes.data + begin, whole, 0))
        if code:
            raise _not_pinned(size, f"CUDA error {code}")
        made = torch.from_numpy(array[begin : begin + size])
        # The arguments keep the memory until it is no longer registered.
        weakref.finalize(made, _unregister, array, begin, self.device).atexit = False
        return made


PAGE = 4096
"""Bytes of a page, the unit of pinned memory."""


def _not_pinned(size: int, reason: str) -> TorchError:
    return TorchError(
        f"{exact_bytes(size)} of host memory cannot be pinned ({reason}); lower host_budget, or "
        "raise the machine's limit of locked memory (ulimit -l)"
    )


def _unregister(array: np.ndarray[Any, Any], begin: int, device: torch.device) -> None:
    """Unpin memory once no copy of the device uses it."""
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        torch.cuda.cudart().cudaHostUnregister(array.ctypes.data + begin)
