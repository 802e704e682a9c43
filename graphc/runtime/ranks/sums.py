"""Deterministic collectives on a wire: sums in the order of ranks.

Element e of a sum is `((x₀[e] + x₁[e]) + x₂[e]) + ...` over the ranks. This holds whichever rank
adds, however many elements are summed at once, and wherever the ranks run. The bits of a gradient
therefore depend on the number of ranks N only, not on buckets or on sharding of states. Reductions
of libraries guarantee less: their order changes with the length of the message, and with the
position of an element in it.

Rank r adds the r-th part of the elements. An all-reduce is a reduce-scatter and an all-gather:

    for each piece of all parts:   send part j to rank j (all-to-all); add the received pieces
    at the end:                    gather all parts on all ranks (all-gather)

Each rank sends 2 (N - 1) / N of the bytes, which is optimal (Patarasuk and Yuan, 2009). Received
bytes go to a `Scratch`, which all collectives of a program share, as they run one after another.
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


class Scratch:
    """The workspace for bytes received from other ranks until they are summed.

    `plans.exchange_bytes` computes its size.
    """

    def __init__(self, ranks: int) -> None:
        self.piece = piece_bytes(ranks)
        self.arrived = np.empty(ranks * self.piece, np.uint8)
        self.wide = np.empty((2, self.piece // 2), np.float32)

    @property
    def bytes(self) -> int:
        return self.arrived.nbytes + self.wide.nbytes


def all_reduce(wire: Wire, scratch: Scratch, y: Array) -> Call:
    """Return the call that replaces contiguous `y` by the sum of `y` over all ranks."""
    flat = y.reshape(-1)
    bounds = [rank * flat.size // wire.size for rank in range(wire.size + 1)]
    own = flat[bounds[wire.rank] : bounds[wire.rank + 1]]
    sums = _summing(wire, scratch, flat, bounds, own)
    item = flat.itemsize
    starts = [item * bound for bound in bounds[:-1]]
    lengths = [item * (b - a) for a, b in itertools.pairwise(bounds)]
    whole = _bytes_of(flat)

    def call() -> None:
        for each in sums:
            each()
        wire.gather(whole, starts, lengths)

    return call


def reduce_scatter(wire: Wire, scratch: Scratch, x: Array, y: Array) -> Call:
    """Return the call that sets `y` to this rank's part of the sum of `x` over all ranks.

    Both are contiguous.
    """
    flat, part = x.reshape(-1), y.size
    bounds = [rank * part for rank in range(wire.size + 1)]
    sums = _summing(wire, scratch, flat, bounds, y.reshape(-1))

    def call() -> None:
        for each in sums:
            each()

    return call


def all_gather(wire: Wire, x: Array, y: Array) -> Call:
    """Return the call that fills `y` with the `x` of all ranks; both are contiguous."""
    whole, part = _bytes_of(y.reshape(-1)), x.nbytes
    starts, lengths = [rank * part for rank in range(wire.size)], [part] * wire.size
    own = whole[starts[wire.rank] : starts[wire.rank] + part]
    given = _bytes_of(x.reshape(-1))

    def call() -> None:
        np.copyto(own, given)
        wire.gather(whole, starts, lengths)

    return call


def broadcast(wire: Wire, y: Array, root: int) -> Call:
    """Return the call that replaces contiguous `y` on all ranks by `y` of rank `root`."""
    whole = _bytes_of(y.reshape(-1))
    return lambda: wire.broadcast(whole, root)


def _summing(
    wire: Wire, scratch: Scratch, flat: Array, bounds: list[int], out: Array
) -> list[Call]:
    """Return calls that sum `flat` over all ranks; each rank computes one part of the sum.

    Part r is `flat[bounds[r]:bounds[r + 1]]`. The part of this rank is written to `out`, which may
    be that part of `flat` itself.
    """
    item, sent = flat.itemsize, _bytes_of(flat)
    step = scratch.piece // item
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    calls: list[Call] = []
    for first in range(0, longest, step):
        counts = [min(max(b - a - first, 0), step) for a, b in itertools.pairwise(bounds)]
        starts = [item * (bound + first) for bound in bounds[:-1]]
        lengths = [item * count for count in counts]
        own = counts[wire.rank]
        arrived = scratch.arrived[: wire.size * own * item]
        pieces = list(arrived.view(flat.dtype).reshape(wire.size, own))
        target = out[first : first + own]
        adds = _adding(scratch, pieces, target) if own else []

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


def _adding(scratch: Scratch, pieces: list[Array], target: Array) -> list[Call]:
    """Return calls that write the sum of `pieces`, added in order, to `target`."""
    if target.dtype.itemsize > 2:
        if len(pieces) == 1:
            return [_call(np.copyto, target, pieces[0])]
        rest = [_call(np.add, target, piece, target) for piece in pieces[2:]]
        return [_call(np.add, pieces[0], pieces[1], target), *rest]
    total, term = (row[: target.size] for row in scratch.wide)
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
