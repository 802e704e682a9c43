"""The stream schedule of a plan: the stream of each node, and the events it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir.graph import Node

MOST_STREAMS = 64
"""The maximum number of streams: each takes driver memory, and each pair of them events."""


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """The stream of a node, and the nodes of other streams that it waits for.

    A node also follows all earlier nodes of its stream. `waits` has positions of nodes in the
    graph.
    """

    stream: int
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """A possible stream schedule: its arena bytes, and the modeled seconds of a step."""

    arena_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Streams:
    """A schedule of a plan's nodes on `count` streams.

    `slots` has an entry for each node that is not a view. `seconds` is the duration of a step by
    the cost model, which assumes that concurrent nodes do not slow each other. `one_stream_seconds`
    is the duration on one stream. `choices` is the Pareto frontier of the schedules found, by
    increasing bytes and decreasing seconds. The plan's own schedule is one of them.
    """

    count: int
    slots: Mapping[Node, StreamSlot]
    seconds: float
    one_stream_seconds: float
    choices: tuple[StreamChoice, ...]

    @property
    def speedup(self) -> float:
        """The duration on one stream divided by the duration of this schedule."""
        return self.one_stream_seconds / self.seconds if self.seconds else 1.0
