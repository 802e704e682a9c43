"""Feeds and outputs between the host and the arena.

Feeds go through pinned memory that is there twice: while a step runs, the next one's feeds are
written to the other half.
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

Array = np.ndarray[Any, np.dtype[Any]]

HALVES = 2


class Mirror:
    """Host memory that holds some values as they lie in the arena."""

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
        """The value's elements; they lie on the host as they do in the arena."""
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
    """Bytes of the host as an array that lies as its value does at a place."""
    return np.ndarray(value.shape, value.type.dtype.numpy, memory.data, 0, place.strides)


@dataclass(frozen=True, slots=True, eq=False)
class Feed:
    """Feeds that were written to one half; they are written again if another took it since."""

    half: int
    feeds: Mapping[Input, Array]


class Staging:
    """The inputs and outputs of steps, one after another."""

    def __init__(
        self,
        accelerator: Accelerator,
        inputs: Iterable[Input],
        outputs: Mapping[str, Value],
        places: Mapping[Value, Place],
    ) -> None:
        self._accelerator = accelerator
        self._named = dict(outputs)
        inputs, visible = tuple(inputs), tuple(dict.fromkeys(self._named.values()))
        self._inputs = [Mirror(accelerator, inputs, places) for _ in range(HALVES)]
        self._outputs = Mirror(accelerator, visible, places)
        self._owners: list[Feed | None] = [None] * HALVES
        self._uploads: list[Event] = [None] * HALVES
        self._next = 0

    def stage(self, feeds: Mapping[Input, Array]) -> Feed:
        """Write feeds to the half that was not used last, once its copies are done."""
        feed = Feed(self._next, feeds)
        self._next = (self._next + 1) % HALVES
        self._write(feed)
        return feed

    def _write(self, feed: Feed) -> None:
        if self._uploads[feed.half] is not None:
            self._accelerator.synchronize(self._uploads[feed.half])
        self._owners[feed.half] = None  # until all is written
        for source, given in feed.feeds.items():
            self._inputs[feed.half].array(source)[...] = given
        self._owners[feed.half] = feed

    def upload(self, feed: Feed, stream: Stream) -> None:
        """Enqueue the copies of feeds to the arena."""
        if self._owners[feed.half] is not feed:
            self._write(feed)
        self._inputs[feed.half].upload(stream)
        self._uploads[feed.half] = self._accelerator.record(stream)

    def fetch(self, stream: Stream) -> Event:
        """Enqueue copies of the outputs to pinned memory; the event is when they are there."""
        self._outputs.download(stream)
        return self._accelerator.record(stream)

    def outputs(self, fetched: Event) -> dict[str, Array]:
        """New arrays of the outputs, made once these have arrived."""
        self._accelerator.synchronize(fetched)
        return {name: self._outputs.array(value).copy() for name, value in self._named.items()}
