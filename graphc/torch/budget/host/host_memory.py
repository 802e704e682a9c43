"""Host memory of planned steps, and the functions that copy tensors to it and back.

The functions are targets of nodes in emitted graphs:

    host = open_host(size, device)            a lease of host memory, as a tensor with its number
    begin_out(host, x, key, offset, size)     copy the storage of x to `size` bytes of host
    end_out(host, x, key)                     wait for it; then the graph frees x
    y = begin_in(host, key, device)           allocate a tensor like x, and begin the copy back
    y = end_in(host, y, key)                  wait for it

A key, the number of a value, identifies a copied tensor.

A lease lasts as long as the tensor with its number, which is saved for the backward pass like any
other. So two forward passes before a backward pass have different host memory, and a backward pass
with ``retain_graph`` may run again. Such a pass copies to memory of its own (`begin_out_apart`),
because later copies may have reused the bytes of earlier ones. A released lease cannot be used by
mistake, since its number is never used again.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from graphc.byte_sizes import exact_bytes
from graphc.errors import TorchError
from graphc.torch.budget.host.lanes import Lanes, lanes_of


class _Layout(NamedTuple):
    """The type and strides of a copied tensor that fills its storage, and the copied bytes.

    `span` is their range in the memory of the lease, which is empty if they are elsewhere.
    """

    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    bytes: torch.Tensor
    span: range


class _Buffer(NamedTuple):
    """Host memory, and the event after which it may be written."""

    memory: torch.Tensor
    idle: Any


class HostMemory:
    """The host memory of a planned step, which its plans and their calls share.

    Memory is allocated at the first call and reused by later ones. It is as large as the largest
    plan needs. Calls whose backward pass is still to come have memory of their own.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """The bytes of a lease: those of the plan that needs most."""
        self.allocations = 0
        """The number of allocations so far."""
        self._lanes: dict[torch.device, Lanes] = {}
        self._idle: dict[torch.device, deque[_Buffer]] = {}

    def reserve(self, size: int) -> None:
        """Let leases have at least `size` bytes."""
        self.bytes = max(self.bytes, size)

    def open(self, size: int, device: torch.device) -> torch.Tensor:
        """Return the number of a new lease of at least `size` bytes for copies of a device."""
        if device not in self._lanes:
            self._lanes[device] = lanes_of(device)
        lanes = self._lanes[device]
        idle = self._idle.setdefault(device, deque())
        buffer = None
        # Leases end in finalizers, in any thread at any time, so there is no lock.
        while buffer is None or len(buffer.memory) < size:
            try:
                buffer = idle.pop()
            except IndexError:
                self.reserve(size)
                buffer = _Buffer(lanes.memory(self.bytes), None)
                self.allocations += 1
        if buffer.idle is not None:
            lanes.wait(buffer.idle)
        number = next(_NUMBERS)
        # Torch's allocator has no part in it, so a plan for a CPU does not count it.
        token = torch.from_numpy(np.array(number))
        _LEASES[number] = Lease(buffer.memory, lanes, idle.append)
        weakref.finalize(token, _close, number).atexit = False
        return token


class Lease:
    """Host memory of one call, with its copies that have not ended, by their keys."""

    def __init__(
        self, memory: torch.Tensor, lanes: Lanes, give_back: Callable[[_Buffer], None]
    ) -> None:
        self.memory, self.lanes, self.give_back = memory, lanes, give_back
        self._layouts: dict[int, _Layout] = {}
        self._leaving: dict[int, tuple[torch.Tensor, Any]] = {}
        """Tensors, which must not be freed yet, and events of copies to the host."""
        self._coming: dict[int, tuple[torch.Tensor, Any]] = {}
        self._read: list[tuple[range, Any]] = []
        """Host bytes that have been copied back, with the events of these copies."""

    def begin_out(
        self, tensor: torch.Tensor, key: int, offset: int, size: int, is_apart: bool = False
    ) -> None:
        """Begin the copy of a tensor's storage to the `size` host bytes at an offset.

        If `is_apart`, the bytes are of new memory.
        """
        source = _bytes_of(tensor)
        if len(source) > size:
            raise TorchError(
                f"a tensor of {exact_bytes(len(source))} does not fit the {exact_bytes(size)} of "
                "host memory planned for it, because an op returned another size than in the "
                "trace; this is a bug in graphc, plan without host_budget"
            )
        span = range(0) if is_apart else range(offset, offset + len(source))
        after = [event for read, event in self._read if _overlap(read, span)]
        made = self.memory[span.start : span.stop]
        if is_apart:
            made = self.lanes.memory(len(source))
        self._layouts[key] = _Layout(
            tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride(), made, span
        )
        self._leaving[key] = tensor, self.lanes.begin("out", made, source, after)

    def end_out(self, key: int) -> None:
        """Let computation wait for a copy to the host, so that its source may be freed.

        Another backward pass of the same call finds nothing to wait for.
        """
        ended = self._leaving.pop(key, None)
        if ended is not None:
            self.lanes.wait(ended[1])

    def begin_in(self, key: int, device: torch.device) -> torch.Tensor:
        """Return a tensor like the copied one on `device`; the copy back to it begins."""
        layout = self._layouts[key]
        whole = torch.empty(len(layout.bytes), dtype=torch.uint8, device=device)
        made = torch.empty(0, dtype=layout.dtype, device=device).set_(
            whole.untyped_storage(), layout.offset, layout.size, layout.stride
        )
        event = self.lanes.begin("in", whole, layout.bytes, ())
        self._read.append((layout.span, event))
        self._coming[key] = made, event
        return made

    def end_in(self, key: int) -> None:
        """Let computation wait for a copy to the device."""
        _, event = self._coming.pop(key)
        self.lanes.wait(event)

    def close(self) -> None:
        """Return the memory to later calls; copies that nothing has awaited end before."""
        for pending in (self._leaving, self._coming):
            while pending:
                _, (_, event) = pending.popitem()
                self.lanes.finish(event)
        self.give_back(_Buffer(self.memory, self.lanes.now()))


_NUMBERS = itertools.count()
_LEASES: dict[int, Lease] = {}
"""Leases by number; each is removed when the tensor with its number is freed."""


def _close(number: int) -> None:
    _LEASES.pop(number).close()


def _lease(host: torch.Tensor) -> Lease:
    found = _LEASES.get(int(host))
    if found is None:
        raise TorchError(
            "the host memory of this step has been released before its backward pass, because "
            "hooks replaced the saved tensors; remove torch.autograd.graph.saved_tensors_hooks "
            "around the step, or plan without host_budget"
        )
    return found


def open_host(size: int, device: torch.device) -> torch.Tensor:
    """Mark the node that opens a lease; the runner calls `HostMemory.open` instead."""
    raise TorchError("a graph with copies to host memory can only be run by its planned step")


def begin_out(host: torch.Tensor, tensor: torch.Tensor, key: int, offset: int, size: int) -> None:
    """Begin the copy of a tensor's storage to the host."""
    _lease(host).begin_out(tensor, key, offset, size)


def begin_out_apart(
    host: torch.Tensor, tensor: torch.Tensor, key: int, offset: int, size: int
) -> None:
    """Begin the copy of a tensor's storage to new host memory, instead of these bytes."""
    _lease(host).begin_out(tensor, key, offset, size, is_apart=True)


def end_out(host: torch.Tensor, tensor: torch.Tensor, key: int) -> None:
    """Wait for a copy to the host; its source may be freed afterwards."""
    _lease(host).end_out(key)


def begin_in(host: torch.Tensor, key: int, device: torch.device) -> torch.Tensor:
    """Allocate a tensor on `device`, and begin the copy from the host."""
    return _lease(host).begin_in(key, device)


def end_in(host: torch.Tensor, tensor: torch.Tensor, key: int) -> torch.Tensor:
    """Return the tensor after waiting for its copy from the host."""
    _lease(host).end_in(key)
    return tensor


for _target in (open_host, begin_out, begin_out_apart, end_out, begin_in, end_in):
    torch.fx.node.has_side_effect(_target)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the storage of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
