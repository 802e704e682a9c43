"""Feeds, outputs and states between the host and the arena.

Feeds and outputs go through pinned memory that is there twice: while a step runs, the next one's
feeds are written to the other half, and outputs are read from the half of their step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from graphc.codegen.layout import Place
from graphc.ir.graph import Input, Value
from graphc.ir.plan import align
from graphc.ir.types import Layout, span_bytes
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
    """Bytes of the host as a value that lies as it does at a place."""
    return np.ndarray(value.shape, value.type.dtype.numpy, memory.data, 0, place.strides)


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
        self._outputs = dict(outputs)
        inputs, shown = tuple(inputs), tuple(dict.fromkeys(self._outputs.values()))
        self._halves = [
            (Mirror(accelerator, inputs, places), Mirror(accelerator, shown, places))
            for _ in range(HALVES)
        ]
        self._done: list[Event] = [None] * HALVES

    def feed(self, step: int, feeds: Mapping[Input, Array | float], stream: Stream) -> None:
        """Copy feeds to pinned memory, and enqueue the copies from there to the arena."""
        if self._done[step % HALVES] is not None:
            self._accelerator.synchronize(self._done[step % HALVES])
        mirror, _ = self._halves[step % HALVES]
        for source, given in feeds.items():
            mirror.array(source)[...] = given
        mirror.upload(stream)

    def fetch(self, step: int, stream: Stream) -> None:
        """Enqueue copies of the step's outputs to pinned memory."""
        self._halves[step % HALVES][1].download(stream)
        self._done[step % HALVES] = self._accelerator.record(stream)

    def outputs(self, step: int) -> dict[str, Array]:
        """The outputs of a step, once they are there. A step's half is free for the one after next
        when they have been taken."""
        self._accelerator.synchronize(self._done[step % HALVES])
        _, mirror = self._halves[step % HALVES]
        return {name: mirror.array(value).copy() for name, value in self._outputs.items()}
