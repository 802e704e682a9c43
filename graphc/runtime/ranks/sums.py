"""Collectives on a wire, with sums in the order of ranks.

Element e of a sum is ((x₀[e] + x₁[e]) + x₂[e]) + ... over the ranks, whoever adds, however many
elements are summed at once, and wherever the ranks run. So the bits of a gradient depend on N
alone: not on buckets, nor on whether states are sharded. Libraries' own reductions promise less:
their order changes with the length of the message, and with an element's place in it.

Rank r adds the r-th part of the elements. An all-reduce is

    for each piece of all parts:   part j goes to rank j (an exchange), which adds what arrives
    at the end:                    all ranks get all parts (a gather)

and sends 2 (N - 1) / N of the bytes, as few as any algorithm can (Patarasuk and Yuan, 2009). What
arrives lies in a `Room`, one for all collectives of a program, since they run one after another.
16-bit numbers are added in float32, and rounded once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from graphc.plans.exchange_bytes import piece_bytes
from graphc.runtime.ranks.wire import Wire

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], None]


class Room:
    """Where what arrives from other ranks lies until it is summed (`plans.exchange_bytes`)."""

    def __init__(self, ranks: int) -> None:
        self.piece = piece_bytes(ranks)
        self.arrived = np.empty(ranks * self.piece, np.uint8)
        self.wide = np.empty((2, self.piece // 2), np.float32)

    @property
    def bytes(self) -> int:
        return self.arrived.nbytes + self.wide.nbytes


def all_reduce(wire: Wire, room: Room, y: Array) -> Call:
    """The call that replaces y, in one piece, by the sum of all ranks' y."""
    flat = y.reshape(-1)
    bounds = [rank * flat.size // wire.size for rank in range(wire.size + 1)]
    own = flat[bounds[wire.rank] : bounds[wire.rank + 1]]
    sums = _summing(wire, room, flat, bounds, own)
    item = flat.itemsize
    starts = [item * bound for bound in bounds[:-1]]
    lengths = [item * (b - a) for a, b in itertools.pairwise(bounds)]
    whole = _bytes_of(flat)

    def call() -> None:
        for each in sums:
            each()
        wire.gather(whole, starts, lengths)

    return call


def reduce_scatter(wire: Wire, room: Room, x: Array, y: Array) -> Call:
    """The call that makes y this rank's part of the sum of all ranks' x, both in one piece."""
    flat, part = x.reshape(-1), y.size
    bounds = [rank * part for rank in range(wire.size + 1)]
    sums = _summing(wire, room, flat, bounds, y.reshape(-1))

    def call() -> None:
        for each in sums:
            each()

    return call


def all_gather(wire: Wire, x: Array, y: Array) -> Call:
    """The call that fills y with all ranks' x, both in one piece."""
    whole, part = _bytes_of(y.reshape(-1)), x.nbytes
    starts, lengths = [rank * part for rank in range(wire.size)], [part] * wire.size
    own = whole[starts[wire.rank] : starts[wire.rank] + part]
    given = _bytes_of(x.reshape(-1))

    def call() -> None:
        np.copyto(own, given)
        wire.gather(whole, starts, lengths)

    return call


def broadcast(wire: Wire, y: Array, root: int) -> Call:
    """The call that replaces y, in one piece, by that of rank `root`."""
    whole = _bytes_of(y.reshape(-1))
    return lambda: wire.broadcast(whole, root)


def _summing(wire: Wire, room: Room, flat: Array, bounds: list[int], out: Array) -> list[Call]:
    """Calls that sum the parts of `flat` between `bounds`, this rank's into `out`, which may be
    that part."""
    item, sent = flat.itemsize, _bytes_of(flat)
    step = room.piece // item
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    calls: list[Call] = []
    for first in range(0, longest, step):
        counts = [min(max(b - a - first, 0), step) for a, b in itertools.pairwise(bounds)]
        starts = [item * (bound + first) for bound in bounds[:-1]]
        lengths = [item * count for count in counts]
        own = counts[wire.rank]
        arrived = room.arrived[: wire.size * own * item]
        pieces = list(arrived.view(flat.dtype).reshape(wire.size, own))
        target = out[first : first + own]
        adds = _adding(room, pieces, target) if own else []

        def call(
            starts: list[int] = starts,
            lengths: list[int] = lengths,
            arrived: Array = arrived,
            adds: list[Call] = adds,
        ) -> None:
            wire.exchange(sent, starts, lengths, arrived)
            for add in adds:
                add()

        calls.append(call)
    return calls


def _adding(room: Room, pieces: list[Array], target: Array) -> list[Call]:
    """Calls that add pieces in their order."""
    if target.dtype.itemsize > 2:
        if len(pieces) == 1:
            return [_call(np.copyto, target, pieces[0])]
        rest = [_call(np.add, target, piece, target) for piece in pieces[2:]]
        return [_call(np.add, pieces[0], pieces[1], target), *rest]
    total, term = (row[: target.size] for row in room.wide)
    calls = [_call(np.copyto, total, pieces[0])]
    for piece in pieces[1:]:
        calls += [_call(np.copyto, term, piece), _call(np.add, total, term, total)]
    return [*calls, _call(np.copyto, target, total, "same_kind")]


def _call(function: Callable[..., Any], *args: Any) -> Call:
    def call() -> None:
        function(*args)

    return call


def _bytes_of(flat: Array) -> Array:
    return flat.view(np.uint8)
