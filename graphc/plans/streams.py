"""Streams of a plan: which nodes may run side by side, and what waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir.graph import Node

MOST_STREAMS = 64
"""Every stream takes some memory of the driver's, and every pair of them events."""


@dataclass(frozen=True, slots=True)
class StreamSlot:
    """The stream that a node runs on, behind the nodes before it there, and the earlier nodes on
    other streams that it waits for, by their numbers in the graph."""

    stream: int
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """Bytes of the arena, and the modelled seconds of a step, of one way to use streams."""

    arena_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Streams:
    """How the nodes of a plan are spread over `count` streams: a slot for each that is no view.

    `seconds` are those of a step by the cost model, which takes it that nodes side by side do not
    slow each other, and `one_stream_seconds` those one after another. `choices` is the frontier of
    what was found, by rising bytes and falling seconds; the plan is one of them.
    """

    count: int
    slots: Mapping[Node, StreamSlot]
    seconds: float
    one_stream_seconds: float
    choices: tuple[StreamChoice, ...]

    @property
    def speedup(self) -> float:
        """How many times faster a step is than on one stream."""
        return self.one_stream_seconds / self.seconds if self.seconds else 1.0
