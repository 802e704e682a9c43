"""Locations of values in memory, derived from NumPy's rules: bytes, pieces, views, parts.

This module belongs to the checker of plans and shares no code with the planners.

A value is one piece of memory, or several if it is interleaved with other bytes, such as a part of
a concatenation along an inner axis. A cell is a range of bytes between two adjacent edges of pieces
and workspaces. So pieces are unions of cells, and two values share a byte if and only if they share
a cell. Values are cut into pieces only in buffers with computed values that have gaps. In other
buffers, a value covers all bytes from its first to its last.

With C edges, binary search finds the cells of a value. One piece is a slice, in O(log C), found
once. Several pieces are an ascending index, in O(pieces log C + cells). The latest `RECENT` of
these indices are kept: layers that reuse bytes have the same ones. Values with equal layouts share
a pattern of pieces, and neighbors share edges. That keeps C small if many parts are in one
concatenation.

Views are compared with NumPy's views of an array with the same strides, on 16 bytes that are never
accessed. Address and strides of the result give the position of each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.plans.memory_plan import MemoryPlan

OUTLINE = bytearray(16)
"""An array whose address is used to compute with strides, but whose elements are not accessed."""

RECENT = 16
"""Number of indices of values in several pieces that are kept; each may have millions of cells."""


def _row_major(value: Value) -> tuple[int, ...]:
    innermost_first = accumulate(reversed(value.shape), mul, initial=value.type.dtype.itemsize)
    return tuple(innermost_first)[-2::-1]  # the last entry is the size of the whole array


def numbers(cells: Any) -> Any:
    """Return the cell numbers that an index selects, which is a slice or an array."""
    return np.arange(cells.start, cells.stop) if isinstance(cells, slice) else cells


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The layout of a value as pieces of equal size.

    `offsets` are the ascending starts of the pieces in bytes, relative to the first; `bytes` is the
    size of one.
    """

    offsets: Any
    bytes: int


def _run(size: int, axes: Sequence[tuple[int, int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the size in bytes of a contiguous piece of an array, and the axes that repeat it.

    `size` is the size of an element. Axes are (stride, extent) pairs, innermost first.
    """
    inner = 0
    while inner < len(axes) and axes[inner][0] in (0, size):
        size *= axes[inner][1] if axes[inner][0] else 1
        inner += 1
    return size, tuple(axes[inner:])


def _starts(axes: Sequence[tuple[int, int]]) -> Any:
    """Return the byte offset of each element of an array with these axes.

    Axes are (stride, extent) pairs, innermost first.
    """
    offsets = np.zeros(1, np.int64)
    for stride, n in axes:
        offsets = np.add.outer(np.arange(n) * stride, offsets).ravel()
    return offsets


def _cells(marks: Any, start: int, pattern: Pattern) -> Any:
    """Return the cells between `marks` of a pattern that starts at a byte, ascending."""
    # Concatenate the ranges `[first, last)` of all pieces.
    edges = (start, start + pattern.bytes)
    first, last = (np.searchsorted(marks, edge + pattern.offsets) for edge in edges)
    counts = last - first
    skipped = np.repeat(first - np.cumsum(counts) + counts, counts)
    return skipped + np.arange(len(skipped))


ONE_PIECE = np.zeros(1, np.int64)


class PlacedValues:
    """The bytes of all values of a plan, divided into cells.

    A cell is a range of bytes between two adjacent edges of pieces or workspaces: cell i extends
    from `marks[i]` to `marks[i + 1]`.
    """

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.names = self.graph.names
        for value in self.graph.values:
            if value not in plan.placements:
                raise PlanError(f"value {self.names[value]} has no placement", [self.names[value]])
        self.spans = {value: self.span(value) for value in self.graph.values}
        self.scattered = {
            plan.placements[value].buffer
            for node in self.graph.nodes
            if self.viewed(node) is None
            for value in node.outputs
            if plan.placements[value].strides is not None and self.has_gaps(value)
        }
        """Indices of buffers that contain a computed value with gaps between its elements."""
        self.known: dict[tuple[tuple[int, int], ...], Any] = {}
        self.kept: dict[tuple[int, tuple[tuple[int, int], ...]], Pattern] = {}
        self.patterns = {value: self.pattern_of(value) for value in self.graph.values}
        self.marks = self.edges()
        self.count = len(self.marks)
        self.slices = self.cells_of_single_pieces()
        self.cells_of_pieces = lru_cache(RECENT)(partial(_cells, self.marks))

    def edges(self) -> Any:
        """Return the edges of all pieces and workspaces, ascending and distinct."""
        found: dict[tuple[int, int], Any] = {(0, 0): np.zeros(1, np.int64)}
        for value, pattern in self.patterns.items():
            start = self.spans[value][0]
            for edge in (start, start + pattern.bytes):  # adjacent pieces share an edge
                found[edge, id(pattern.offsets)] = pattern.offsets
        edges = [start + offsets for (start, _), offsets in found.items()]
        for buffer in self.plan.workspaces.values():
            edges.append(np.array([buffer.offset, buffer.offset + buffer.bytes], np.int64))
        marks = np.sort(np.concatenate(edges), kind="stable")  # fast on long sorted runs
        return marks[np.diff(marks, prepend=-1) > 0]

    def span(self, value: Value) -> tuple[int, int]:
        """Return the first byte of a value in the arena, and the byte after its last element."""
        placement = self.plan.placements[value]
        buffer = self.plan.buffers[placement.buffer]
        start = buffer.offset + placement.offset
        if placement.strides is None:
            size = value.type.bytes
        else:
            reach = zip(value.shape, placement.strides, strict=True)
            size = sum((n - 1) * stride for n, stride in reach) + value.type.dtype.itemsize
        if placement.offset < 0 or placement.offset + size > buffer.bytes:
            name = self.names[value]
            raise PlanError(
                f"value {name} of {size} bytes at {placement.offset} exceeds its buffer "
                f"{buffer.index} of {buffer.bytes} bytes",
                [name, f"buffer {buffer.index}"],
            )
        return start, start + size

    def layout(self, value: Value) -> tuple[Any, ...]:
        """Return a key that is equal for two values if their elements are at the same bytes."""
        strides = self.plan.placements[value].strides or _row_major(value)
        steps = tuple(s for n, s in zip(value.shape, strides, strict=True) if n > 1)
        return self.spans[value], value.shape, steps

    def has_gaps(self, value: Value) -> bool:
        """Return True if a value has gaps: bytes between first and last that are not its own."""
        start, end = self.spans[value]
        return end - start != value.type.bytes

    def pattern_of(self, value: Value) -> Pattern:
        """Return the pieces of a value.

        If its buffer has no computed value with gaps, all bytes from the first to the last of the
        value count as one piece.
        """
        placement, (start, end) = self.plan.placements[value], self.spans[value]
        if placement.strides is None or placement.buffer not in self.scattered:
            return Pattern(ONE_PIECE, end - start)
        steps = zip(placement.strides, value.shape, strict=True)
        axes = sorted((stride, n) for stride, n in steps if n > 1)
        size, outer = _run(value.type.dtype.itemsize, axes)
        if outer not in self.known:
            self.known[outer] = _starts(outer)
        return self.kept.setdefault((size, outer), Pattern(self.known[outer], size))

    def cell_range(self, start: int, end: int) -> slice:
        """Return the cells between two edges, which are offsets in the arena."""
        return slice(*np.searchsorted(self.marks, (start, end)).tolist())

    def cells_of_single_pieces(self) -> dict[Value, slice]:
        """Return the cells of each value that is one piece, found by one binary search for all."""
        single = [value for value, pattern in self.patterns.items() if len(pattern.offsets) == 1]
        starts = np.array([self.spans[value][0] for value in single], np.int64)
        sizes = np.array([self.patterns[value].bytes for value in single], np.int64)
        first, last = (
            np.searchsorted(self.marks, edge).tolist() for edge in (starts, starts + sizes)
        )
        return dict(zip(single, map(slice, first, last), strict=True))

    def cells_of(self, value: Value) -> Any:
        """Return an index that selects the cells of a value.

        It is a slice for a value of one piece, else an ascending array of cell numbers.
        """
        if value in self.slices:
            return self.slices[value]
        return self.cells_of_pieces(self.spans[value][0], self.patterns[value])

    def overlap(self, a: Value, b: Value) -> bool:
        """Return True if two values share a byte."""
        (low, high), (start, end) = self.spans[a], self.spans[b]
        if high <= start or end <= low:
            return False
        taken = np.zeros(self.count, bool)
        taken[self.cells_of(a)] = True
        return bool(taken[self.cells_of(b)].any())

    def outline(self, value: Value) -> tuple[Any, int]:
        """Return an array with the shape and strides of a value, and the address of its buffer.

        The array is for computing addresses; its elements must not be accessed.
        """
        place = self.plan.placements[value]
        array = np.ndarray(value.shape, value.type.dtype.numpy, OUTLINE, 0, (0,) * value.type.rank)
        strides = place.strides or _row_major(value)
        array = np.lib.stride_tricks.as_strided(array, value.shape, strides)
        return array, array.__array_interface__["data"][0] - place.offset

    def viewed(self, node: Node) -> Value | None:
        """Return the operand that a node's outputs are views of; None if they are computed."""
        source = node.viewed
        if source is None:
            return None
        buffer = self.plan.placements[source].buffer
        are_views = all(
            self.plan.placements[value].buffer == buffer
            and self.plan.placements[value].how == "view"
            for value in node.outputs
        )
        return source if are_views else None

    def is_writable(self, value: Value) -> bool:
        """Return True if a kernel can write a value with its strides.

        No two of its elements may overlap.
        """
        strides, node = self.plan.placements[value].strides, value.node
        if strides is None:
            return True
        reach = size = value.type.dtype.itemsize
        for stride, n in sorted((s, n) for s, n in zip(strides, value.shape, strict=True) if n > 1):
            if stride < reach or stride % size:
                return False
            reach = stride * n
        target = self.plan.target
        if node is None:
            return target.prefers_channels_last and isinstance(value, State)
        name = node.op.output_name(value.index)
        return target.takes_strides(node, name, value.type, strides)

    def check_view(self, node: Node, source: Value) -> None:
        """Check that a view is located in its operand where NumPy's rules locate it."""
        array, start = self.outline(source)
        try:
            parts = node.op.numpy_views(node, array)
        except ValueError:  # NumPy would have to copy
            names = [self.names[node.outputs[0]], self.names[source]]
            raise PlanError(f"{names[0]} cannot be a view of {names[1]}", names) from None
        for value, part in zip(node.outputs, parts, strict=True):
            stated = self.plan.placements[value]
            offset = part.__array_interface__["data"][0] - start
            has = stated.strides or _row_major(value)
            steps = zip(value.shape, has, part.strides, strict=True)
            if stated.offset != offset or any(n > 1 and a != b for n, a, b in steps):
                names = [self.names[value], self.names[source]]
                raise PlanError(
                    f"the plan places view {names[0]} at {stated.offset} with strides {has}, but "
                    f"its location in {names[1]} is {offset} with strides {part.strides}",
                    names,
                )

    def inside(self, node: Node) -> list[Value]:
        """Return the operands that are placed exactly at their part of a concatenation's output."""
        (y,) = node.outputs
        array, start = self.outline(y)
        found: list[Value] = []
        for value, part in zip(node.inputs, node.op.numpy_parts(node, array), strict=True):
            stated = self.plan.placements[value]
            offset = part.__array_interface__["data"][0] - start
            steps = zip(value.shape, stated.strides or _row_major(value), part.strides, strict=True)
            if (
                (stated.buffer, stated.offset) == (self.plan.placements[y].buffer, offset)
                and all(n == 1 or a == b for n, a, b in steps)
                and value not in found
            ):
                found.append(value)
        return found
