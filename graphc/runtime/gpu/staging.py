"""Transfers of feeds and outputs between the host and the arena, with double buffering.

Feeds go through two halves of pinned memory: while a step runs, the feeds of the next step are
written to the other half. Outputs that are copied while the next step runs use two halves too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.codegen.text.operands import Place
from graphc.ir.graph import Input, Value
from graphc.ir.types import Layout, align, span_bytes
from graphc.runtime.gpu.accelerator import Accelerator, Bytes, Event, Stream
from graphc.runtime.gpu.places import ARENA_ALIGNMENT
from graphc.runtime.padding import Padded, write

Array = np.ndarray[Any, np.dtype[Any]]

HALVES = 2


class Mirror:
    """Pinned host memory for some values, with the same strides as in the arena."""

    def __init__(
        self, accelerator: Accelerator, values: Iterable[Value], places: Mapping[Value, Place]
    ) -> None:
        self._accelerator = accelerator
        self._places = {value: places[value] for value in values}
        sizes = {v: span_bytes(v.type, Layout(0, p.strides)) for v, p in self._places.items()}
        whole = accelerator.pinned(sum(align(n, ARENA_ALIGNMENT) for n in sizes.values()))
        self._bytes: dict[Value, Bytes] = {}
        start = 0
        for value, size in sizes.items():
            self._bytes[value] = whole[start : start + size]
            start += align(size, ARENA_ALIGNMENT)

    def array(self, value: Value) -> Array:
        """Return the elements of a value on the host, with the strides that it has in the arena."""
        return arranged(self._bytes[value], value, self._places[value])

    def upload(self, stream: Stream) -> None:
        """Enqueue copies of all values to the arena."""
        for value, place in self._places.items():
            self._accelerator.upload(place.address, self._bytes[value], stream)

    def download(self, stream: Stream) -> None:
        """Enqueue copies of all values from the arena."""
        for value, place in self._places.items():
            self._accelerator.download(self._bytes[value], place.address, stream)


def arranged(memory: Bytes, value: Value, place: Place) -> Array:
    """Return an array on host memory that has the strides of a value in the arena."""
    return np.ndarray(value.shape, value.type.dtype.numpy, memory.data, 0, place.strides)


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """A set of feeds, and the half of pinned memory to which they were written.

    They are written again if other feeds have overwritten them.
    """

    half: int
    feeds: Mapping[Input, Array | Padded]


class _Moves:
    """Copies, inside the arena, between values and their slots."""

    def __init__(
        self,
        accelerator: Accelerator,
        places: Mapping[Value, Place],
        slots: Mapping[Value, Place],
    ) -> None:
        self._accelerator = accelerator
        self._pairs = [
            (places[value].address, slot.address, span_bytes(value.type, Layout(0, slot.strides)))
            for value, slot in slots.items()
        ]

    def into_places(self, stream: Stream) -> None:
        for place, slot, size in self._pairs:
            self._accelerator.copy(place, slot, size, stream)

    def into_slots(self, stream: Stream) -> None:
        for place, slot, size in self._pairs:
            self._accelerator.copy(slot, place, size, stream)


class Arrivals:
    """Transfers of feeds to the inputs of successive steps, on a stream of their own.

    Without `slots`, feeds are copied to their `places` between two steps, because inputs share
    bytes with other values. With slots, feeds are copied to the slots while a step runs. Only a
    copy inside the arena then remains between two steps.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        inputs: Iterable[Input],
        places: Mapping[Value, Place],
        slots: Mapping[Value, Place],
    ) -> None:
        self._accelerator = accelerator
        self.stream = accelerator.stream()
        inputs = tuple(inputs)
        self._halves = [Mirror(accelerator, inputs, slots or places) for _ in range(HALVES)]
        self._moves = _Moves(accelerator, places, slots) if slots else None
        self._owners: list[Feed | None] = [None] * HALVES
        self._uploads: list[Event] = [None] * HALVES
        self._next = 0
        self._landed: Feed | None = None
        """The feed that is in the slots, or being copied there, and has not been used yet."""
        self._taken: Event = None
        """The event after which the slots may be written again."""

    def stage(self, feeds: Mapping[Input, Array | Padded]) -> Feed:
        """Write feeds to the half that was not used last, once its copies are done.

        They are also copied to the slots, unless the slots have feeds that are not used yet.
        """
        feed = Feed(self._next, feeds)
        self._next = (self._next + 1) % HALVES
        self._write(feed)
        if self._moves is not None and self._landed is None:
            self._land(feed)
        return feed

    def _write(self, feed: Feed) -> None:
        if self._uploads[feed.half] is not None:
            self._accelerator.synchronize(self._uploads[feed.half])
        self._owners[feed.half] = None  # until all is written
        for source, given in feed.feeds.items():
            write(self._halves[feed.half].array(source), given)
        self._owners[feed.half] = feed

    def feed(self, feed: Feed, stream: Stream) -> None:
        """Enqueue the copies of feeds to the inputs, after all work on the stream so far."""
        accelerator = self._accelerator
        if self._moves is None:
            self._upload(feed, accelerator.record(stream))
            accelerator.wait(stream, self._uploads[feed.half])
            return
        if self._landed is not feed:
            self._land(feed)
        accelerator.wait(stream, self._uploads[feed.half])
        self._moves.into_places(stream)
        self._taken = accelerator.record(stream)
        self._landed = None

    def _land(self, feed: Feed) -> None:
        self._landed = None  # until all is enqueued
        self._upload(feed, self._taken)
        self._landed = feed

    def _upload(self, feed: Feed, after: Event) -> None:
        """Enqueue the copy of a feed to the device, after `after` is complete."""
        if self._owners[feed.half] is not feed:
            self._write(feed)
        if after is not None:
            self._accelerator.wait(self.stream, after)
        self._halves[feed.half].upload(self.stream)
        self._uploads[feed.half] = self._accelerator.record(self.stream)


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """Outputs of a step that are being copied to one half, and the event of their arrival."""

    half: int
    there: Event


class Departures:
    """Transfers of the outputs of successive steps to the host.

    With `slots`, outputs are copied from the slots on a stream of their own while the next step
    runs. The outputs of two steps may then be in flight.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        outputs: Mapping[str, Value],
        places: Mapping[Value, Place],
        slots: Mapping[Value, Place],
    ) -> None:
        self._accelerator = accelerator
        self.stream = accelerator.stream() if slots else None
        self._named = dict(outputs)
        visible, count = tuple(dict.fromkeys(outputs.values())), HALVES if slots else 1
        self._halves = [Mirror(accelerator, visible, slots or places) for _ in range(count)]
        self._moves = _Moves(accelerator, places, slots)
        self._next = 0
        self._left: Event = None
        """The event after which the slots may be written again."""

    def fetch(self, stream: Stream) -> Fetched:
        """Enqueue copies of the outputs to pinned memory, after all work on the stream so far."""
        accelerator, half = self._accelerator, self._next
        if self.stream is None:
            self._halves[half].download(stream)
            return Fetched(half, accelerator.record(stream))
        if self._left is not None:
            accelerator.wait(stream, self._left)
        self._moves.into_slots(stream)
        accelerator.wait(self.stream, accelerator.record(stream))
        self._halves[half].download(self.stream)
        self._left = accelerator.record(self.stream)
        self._next = (half + 1) % HALVES
        return Fetched(half, self._left)

    def outputs(self, fetched: Fetched) -> dict[str, Array]:
        """Wait for outputs to arrive, and return them as new arrays."""
        self._accelerator.synchronize(fetched.there)
        arrived = self._halves[fetched.half]
        return {name: arrived.array(value).copy() for name, value in self._named.items()}
