"""Errors for exceeded capacities: they report the peak step and the largest buffers there."""

from __future__ import annotations

import numpy as np

from graphc.errors import CapacityError
from graphc.planner.pack.given import Buffers

LISTED = 6
"""The maximum number of buffers and spans in a message."""


def check_bound(buffers: Buffers, bound: int, capacity: int) -> None:
    """Raise `CapacityError` if the peak live bytes or the end of a pinned buffer exceeds the
    capacity."""
    if bound <= capacity:
        return
    spans, peak = _above(buffers, capacity)
    if not spans:
        ends = np.where(buffers.is_pinned, buffers.offset + buffers.size, 0)
        index = int(ends.argmax())
        raise CapacityError(
            f"a pinned buffer ends above the capacity of {capacity} bytes: {buffers.told(index)}; "
            "move it down or raise the capacity",
            capacity,
            bound,
            bound,
            (),
            (index,),
        )
    largest = _largest_at(buffers, peak)
    raise CapacityError(
        f"no packing fits into {capacity} bytes: {bound} bytes are live at time {peak}, and live "
        f"bytes exceed the capacity at times {_spans_told(spans)}; the largest buffers at time "
        f"{peak} are {_told(buffers, largest)}. Raise the capacity to at least {bound}, or make "
        "these buffers smaller or shorter-lived",
        capacity,
        bound,
        bound,
        spans,
        largest,
    )


def check_height(buffers: Buffers, height: int, proven: int, capacity: int) -> None:
    """Raise `CapacityError` if the best packing found exceeds the capacity."""
    if height <= capacity:
        return
    _, peak = _above(buffers, capacity)
    largest = _largest_at(buffers, peak)
    if proven > capacity:
        said = (
            f"no packing fits into {capacity} bytes, as an exhausted search or pinned buffers prove"
        )
    else:
        said = (
            f"no packing within {capacity} bytes was found, which does not prove that none exists"
        )
    cure = f"Raise the capacity to at least {height}"
    if proven <= capacity:
        cure += ", or the effort"
    raise CapacityError(
        f"{said}; the lowest packing found takes {height} bytes, and none can take fewer than "
        f"{proven}. The peak is at time {peak}, where the largest buffers are "
        f"{_told(buffers, largest)}. {cure}",
        capacity,
        height,
        proven,
        (),
        largest,
    )


def _above(buffers: Buffers, capacity: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the spans `[begin, end)` in which live bytes exceed the capacity, and the peak
    time."""
    times, places = np.unique(np.concatenate((buffers.lower, buffers.upper)), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, places, np.concatenate((buffers.size, -buffers.size)))
    live = np.cumsum(change)
    over = np.diff((live > capacity).astype(np.int64), prepend=0)
    begins, ends = times[over == 1].tolist(), times[over == -1].tolist()
    return tuple(zip(begins, ends, strict=True)), int(times[live.argmax()])


def _largest_at(buffers: Buffers, time: int) -> tuple[int, ...]:
    """Return the indices of up to `LISTED` buffers that are live at a time, largest first."""
    live = np.flatnonzero((buffers.lower <= time) & (time < buffers.upper))
    order = live[np.argsort(-buffers.size[live], kind="stable")]
    return tuple(order[:LISTED].tolist())


def _told(buffers: Buffers, indices: tuple[int, ...]) -> str:
    return ", ".join(
        f"buffer {buffers.name_of(index)} ({int(buffers.size[index])} bytes)" for index in indices
    )


def _spans_told(spans: tuple[tuple[int, int], ...]) -> str:
    told = ", ".join(f"[{begin}, {end})" for begin, end in spans[:LISTED])
    return told if len(spans) <= LISTED else f"{told} and {len(spans) - LISTED} more spans"
