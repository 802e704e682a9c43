"""Value numbers of graphs with copies to host memory, for the checker of plans.

The checker has the content of host bytes, by the ranges that copies write. A copy to the host
destroys those that it overlaps. A copy back has the content of its bytes. Copies run beside the
graph from their begin to their end, so no node may write the source of a copy, or read its
destination, in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.check.contents import Done, Storage, Tensor, Tree, Walk, tensors_in
from graphc.torch.budget.host.host_memory import begin_in, begin_out, end_in, end_out, open_host

HOST = "host memory"
"""The value of a node that opens host memory."""


class CopyError(Exception):
    """An error in the copies of a graph; its text continues a clause about a node."""


@dataclass(frozen=True)
class Stored:
    """Host bytes `[start, stop)` with a copy: the content, the source and its tensor."""

    start: int
    stop: int
    content: int
    source: Storage
    fake: torch.Tensor


@dataclass
class Fetched(Done):
    """A visited node that begins a copy to the device, and the storage that was copied."""

    source: Storage | None = None


class HostWalk(Walk):
    """A traversal of graphs that may copy tensors to host memory and back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._size = 0
        self._stored: dict[int, Stored] = {}
        """Intact contents of host bytes, by the keys of copies."""
        self._leaving: dict[Storage, int] = {}
        """Sources of copies to the host that have not ended, with their keys."""
        self._coming: dict[Storage, int] = {}
        """Destinations of copies to the device that have not ended, with their keys."""

    def do(self, node: fx.Node) -> Done:
        """Visit a node; raises `CopyError` if copies are wrong there."""
        if node.target is end_in:
            return self._end_in(node)
        for each in node.all_input_nodes:
            if any(tensor.storage in self._coming for tensor in tensors_in(self.env[each])):
                raise CopyError(f"{each.name} is read before its copy from the host has ended")
        if node.target is open_host:
            self._size = int(node.args[0])
            self.env[node] = HOST
            return Done(node, None)
        if node.target is begin_out:
            return self._begin_out(node)
        if node.target is end_out:
            return self._end_out(node)
        if node.target is begin_in:
            return self._begin_in(node)
        done = super().do(node)
        for storage in done.written:
            if storage in self._leaving:
                raise CopyError(f"{storage.name} is overwritten before its copy has ended")
        return done

    def leave(self, returned: Iterable[Tree]) -> None:
        """End a graph that returns these values, and so frees all others."""
        kept = {tensor.storage for tree in returned for tensor in tensors_in(tree)}
        for storage in self._coming:
            raise CopyError(f"{storage.name} is returned before its copy from the host has ended")
        for storage in self._leaving:
            if storage not in kept:
                raise CopyError(f"{storage.name} is freed before its copy to the host has ended")

    def _begin_out(self, node: fx.Node) -> Done:
        host, source, key, start, size = node.args
        self._expect_host(host)
        tensor, fake = self._tensor(source), source.meta["val"]
        bytes_of_elements = fake.numel() * fake.element_size()
        if bytes_of_elements != fake.untyped_storage().nbytes() or fake.storage_offset():
            raise CopyError(f"{source.name} is only a part of its storage")
        if bytes_of_elements > size:
            raise CopyError(f"{source.name} has more bytes than the host keeps for it")
        if start < 0 or start + size > self._size:
            raise CopyError("the copy is outside of host memory")
        if tensor.storage in self._leaving:
            raise CopyError(f"{source.name} is copied to the host already")
        pending = set(self._leaving.values())
        for other, stored in list(self._stored.items()):
            if stored.start < start + size and start < stored.stop:
                if other in pending:
                    name = stored.source.name
                    raise CopyError(f"{name} is copied to the same host bytes at the same time")
                del self._stored[other]
        content = self.seen(source)
        self._stored[key] = Stored(start, start + size, content, tensor.storage, fake)
        self._leaving[tensor.storage] = key
        self.env[node] = None
        return Done(node, None)

    def _end_out(self, node: fx.Node) -> Done:
        host, source, key = node.args
        self._expect_host(host)
        if self._leaving.get(self._tensor(source).storage) != key:
            raise CopyError(f"{source.name} is not being copied to the host as copy {key}")
        del self._leaving[self._tensor(source).storage]
        self.env[node] = None
        return Done(node, None)

    def _begin_in(self, node: fx.Node) -> Done:
        host, key, _ = node.args
        self._expect_host(host)
        stored = self._stored.get(key)
        if stored is None:
            raise CopyError(f"copy {key} is not on the host, or its bytes are overwritten")
        if key in self._leaving.values():
            raise CopyError(f"the copy of {stored.source.name} to the host has not ended")
        fake = node.meta["val"]
        if _layout(fake) != _layout(stored.fake):
            raise CopyError("the result has another type or other strides than the copied tensor")
        storage = Storage(stored.source.bytes, node.name, fake)
        self.env[node] = Tensor(stored.content, storage, 0)
        self._coming[storage] = key
        return Fetched(node, None, makes=[storage], source=stored.source)

    def _end_in(self, node: fx.Node) -> Done:
        host, made, key = node.args
        self._expect_host(host)
        tensor = self._tensor(made)
        if self._coming.get(tensor.storage) != key:
            raise CopyError(f"{made.name} is not being copied from the host as copy {key}")
        del self._coming[tensor.storage]
        self.env[node] = tensor
        return Done(node, None)

    def _tensor(self, node: fx.Node) -> Tensor:
        (tensor,) = tensors_in(self.env[node])
        return tensor

    def _expect_host(self, node: fx.Node) -> None:
        if self.env[node] != HOST:
            raise CopyError(f"{node.name} is not host memory")


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.dtype, fake.device, fake.shape, fake.stride(), fake.storage_offset()
