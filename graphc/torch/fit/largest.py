"""The largest batch and length that fit, from a few traces of smaller steps.

The allocations of a step are the same for every size, and the bytes of each are a polynomial in
the batch or the length: of degree 1 in the batch, and of degree 2 in the length, because of masks
and scores. The traces of two batches, or three lengths, determine them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from graphc.torch.fit.step import Prediction, Request, needed_for, predict

MOST = 1 << 20
"""The largest batch or length that is tried."""

Trace = Sequence[tuple[int, int]]


def largest_batch(request: Request, found: Prediction) -> int | None:
    """Return the largest batch that fits, 0 if none fits, or None if it is unknown.

    It is unknown if the allocations of a step depend on the batch, or if its example has no batch
    to choose.
    """
    if not request.source.has_batch:
        return None
    batch = max(request.sizes.batch, 2)  # a batch of 1 needs fewer copies
    known = [(n, predict(_sized(request, batch=n)).trace) for n in (batch, batch + 1)]
    return _largest(request, found, known, MOST)


def largest_seq(request: Request, found: Prediction) -> int | None:
    """Return the longest sequence that fits, within the model's limit, as `largest_batch`."""
    seq = request.sizes.seq or request.source.seq
    if seq is None or seq < 4:
        return None
    known = [(seq, found.trace)]
    known += [(n, predict(_sized(request, seq=n)).trace) for n in (seq // 2, seq // 4)]
    return _largest(request, found, known, request.source.longest or MOST)


def _sized(request: Request, **sizes: Any) -> Request:
    return replace(request, sizes=replace(request.sizes, **sizes))


def _largest(
    request: Request,
    found: Prediction,
    known: Sequence[tuple[int, Trace]],
    most: int,
) -> int | None:
    keys = [[key for key, _ in trace] for _, trace in known]
    if any(each != keys[0] for each in keys):
        return None

    def fits(size: int) -> bool:
        trace = list(zip(keys[0], _interpolated(known, size), strict=True))
        return needed_for(request, found, trace) <= request.memory.usable_bytes

    return _last(fits, most)


def _interpolated(known: Sequence[tuple[int, Trace]], size: int) -> list[int]:
    """Return the bytes of each allocation for a size, by Lagrange's polynomial."""
    at = [each for each, _ in known]
    weights = [
        prod((size - other) / (each - other) for other in at if other != each) for each in at
    ]
    columns = zip(*([count for _, count in trace] for _, trace in known), strict=True)
    return [round(sum(w * n for w, n in zip(weights, row, strict=True))) for row in columns]


def _last(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, by doubling and bisection; 0 if none."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
