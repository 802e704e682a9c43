"""Nodes of emitted graphs that copy values to host memory and back."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.joint import Joint
from graphc.torch.budget.offload.host_memory import begin_in, begin_out, end_in, end_out, open_host
from graphc.torch.budget.offload.movable import device_of_copies
from graphc.torch.budget.offload.schedule import Copies


class CopyNodes:
    """Emits the copies of a schedule; `host` is the node with the lease of host memory."""

    def __init__(self, joint: Joint, copies: Copies | None) -> None:
        self.joint, self.copies = joint, copies
        self.host: fx.Node | None = None
        self._coming: set[int] = set()
        self.views: dict[int, list[fx.Node]] = defaultdict(list)
        """The views of each value, which are emitted anew after a copy back."""
        for node in joint.values if copies is not None else ():
            if node not in joint.step_of and node.op == "call_function":
                for value in joint.values[node]:
                    self.views[value].append(node)

    def is_coming(self, value: int) -> bool:
        """Return whether a copy of a value to the device has begun and has not been awaited."""
        return value in self._coming

    def open(self, graph: fx.Graph) -> None:
        """Emit the lease of host memory, if there are copies."""
        if self.copies is not None:
            device = device_of_copies(self.joint)
            self.host = graph.call_function(open_host, (self.copies.host_bytes, device))
            with self.joint.fake_mode:
                self.host.meta["val"] = torch.empty((), dtype=torch.int64)

    def begin_out(self, graph: fx.Graph, value: int, source: fx.Node) -> None:
        """Emit the begin of a copy to the host."""
        fake = source.meta["val"]
        size = fake.numel() * fake.element_size()
        assert self.copies is not None, "there are copies"
        self._call(graph, begin_out, source, value, self.copies.offsets[value], size)

    def end_out(self, graph: fx.Graph, value: int, source: fx.Node) -> None:
        """Emit the end of a copy to the host."""
        self._call(graph, end_out, source, value)

    def begin_in(self, graph: fx.Graph, value: int) -> fx.Node:
        """Emit the begin of a copy to the device; returns the node of its tensor."""
        self._coming.add(value)
        meta = self.joint.base[value].meta
        made = self._call(graph, begin_in, value, meta["val"].device)
        made.meta = dict(meta)
        return made

    def end_in(self, graph: fx.Graph, value: int, coming: fx.Node) -> fx.Node:
        """Emit the end of a copy to the device; returns the node of its tensor."""
        self._coming.remove(value)
        made = self._call(graph, end_in, coming, value)
        made.meta = dict(coming.meta)
        return made

    def _call(self, graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
        return graph.call_function(target, (self.host, *args))
