"""Linear maps along one axis, given by a sparse table of source elements and weights.

Resizing, non-constant padding and folding windows are such maps. Each map has two ops: the map
itself and its transpose. Each of the two computes the gradient of the other. A table depends only
on attributes and extents. It is computed during planning, because the cost of a node depends on it,
and is not stored in the arena. Creating a node raises an error if its table would have more than
`MOST_TAPS` numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from graphc.devices.device import Device
from graphc.errors import ShapeError
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import REGISTRY, Array, Cost, Op, Recorder
from graphc.ir.types import TensorType
from graphc.ops.elementwise import float_dtype
from graphc.ops.geometry import COUNTED

MOST_TAPS = 2**26
"""The largest number of weights in a table.

Computing a table takes about 60 bytes per weight: up to 4 GiB.
"""

TILE_BYTES = 4 * 2**20
"""The most bytes of scratch.

The device may allow fewer; one index of the mapped axis, with all later axes, may need more.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A sparse matrix in CSR form: rows are results, columns are source elements.

    Result i sums `weights[k]` times the element at `places[k]`, for k from `starts[i]` to below
    `starts[i + 1]`. A result without terms has the fill value of the map (`AxisMap.fill`).
    """

    starts: Array
    places: Array
    weights: Array

    @property
    def counts(self) -> Array:
        """The number of terms (source elements) that each result sums."""
        return np.diff(self.starts)

    @property
    def copies(self) -> bool:
        """True if each result is a copy of one source element, or the fill value."""
        return bool(self.counts.max() <= 1 and (self.weights == 1.0).all())

    def transposed(self, extent: int) -> Table:
        """Return the transposed table: each of `extent` source elements sums the results using
        it."""
        rows = np.repeat(np.arange(len(self.starts) - 1), self.counts)
        order = np.argsort(self.places, kind="stable")
        counts = np.bincount(self.places, minlength=extent)
        return Table(_running(counts), rows[order], self.weights[order])


def _running(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def table_of(places: Array, weights: Array | None, kept: Array | None = None) -> Table:
    """Return a table from source indices and weights, both (results, taps).

    The mask `kept` selects taps.
    """
    share = np.ones(places.shape) if weights is None else weights
    mask = share != 0 if kept is None else kept
    return Table(_running(mask.sum(1)), places[mask].astype(np.int64), share[mask])


@dataclass(frozen=True, slots=True)
class AxisMapAttributes:
    """An axis, counted from the front, and its extent in the result."""

    axis: Annotated[int, Whole()]
    extent: Annotated[int, Whole(1, COUNTED)]


class AxisMap(Op):
    """Base of the maps and of their transposes; `transposes` tells which of the two an op is."""

    inputs = ("x",)
    needs_contiguous = ("x",)
    any_strides = True
    on_maps = True

    transposes: ClassVar[bool] = False
    partner: ClassVar[str]
    """The name of the op for the transpose of this one."""
    cure: ClassVar[str] = "process the axis in parts and join them with graphc.concat"
    """The fix that the error message suggests if the table would be too large."""

    def forward_table(self, attributes: Any, source: int, result: int) -> Table:
        """Return the table of the map itself, from an axis of extent `source` to one of
        `result`."""
        raise NotImplementedError

    def taps(self, attributes: Any) -> int:
        """Return the largest number of source elements that a result of the map sums."""
        return 1

    def check(self, attributes: Any, x: TensorType, source: int, result: int) -> None:
        """Raise `GraphcError` if attributes do not fit the map's extents, `source` and `result`."""

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        if attributes.axis >= x.rank:
            raise ShapeError(
                f"axis {attributes.axis} is out of range for {x}, which has {x.rank} axes"
            )
        own, extent = x.shape[attributes.axis], attributes.extent
        if own > COUNTED:
            raise ShapeError(
                f"axis {attributes.axis} must have at most {COUNTED} elements, got {x}; {self.cure}"
            )
        source, result = (extent, own) if self.transposes else (own, extent)
        if self.transposes:
            float_dtype(x)
        self.check(attributes, x, source, result)
        self._check_size(attributes, result)
        shape = list(x.shape)
        shape[attributes.axis] = extent
        return x.with_shape(shape)

    def _check_size(self, attributes: Any, result: int) -> None:
        """Raise `ShapeError` for a table that would exhaust memory, before it is computed."""
        taps = self.taps(attributes)
        if max(attributes.extent, result * taps) > MOST_TAPS:
            raise ShapeError(
                f"the weight table of an axis map must have at most {MOST_TAPS} numbers; {result} "
                f"results of {taps} terms each, with extent {attributes.extent}, need more; "
                f"{self.cure}"
            )

    def fill(self, attributes: Any) -> float:
        """Return the value of results to which no source element contributes, such as padding."""
        return 0.0

    def linear(self, attributes: Any) -> Any:
        """Return the attributes of the map without its fill, which does not affect gradients."""
        return attributes

    def gradient(self, node: Node, dy: Value) -> Value:
        a = self.linear(node.attributes)
        attributes = replace(a, extent=node.inputs[0].shape[a.axis])
        return apply(type(REGISTRY[self.partner]), dy, attributes=attributes).output

    def table(self, node: Node) -> Table:
        """Return the table of the node: the elements that each result sums."""
        a = node.attributes
        return _tabled(self, a, node.inputs[0].shape[a.axis])

    def cost(self, node: Node) -> Cost:
        moved, table, y = super().cost(node), self.table(node), node.output
        if table.copies:
            return moved
        lines = y.type.elements // y.shape[node.attributes.axis]
        return Cost(2 * len(table.places) * lines, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type for elements that are gathered, or weighted before an
        addition."""
        if not any(run.needs_workspace for run in _runs(self.table(node))):
            return ()
        y = node.output.type
        lines, extent, inner = folded(y.shape, node.attributes.axis)
        limit = min(TILE_BYTES, device.workspace_limit_bytes) // max(4, y.dtype.itemsize)
        rows = min(extent, max(1, limit // inner))
        return (y.with_shape((min(lines, max(1, limit // (rows * inner))), rows, inner)),)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        axis, table = node.attributes.axis, self.table(node)
        source, result = x.reshape(folded(x.shape, axis)), y.reshape(folded(y.shape, axis))
        for start, stop in _ranges(table.counts == 0):
            record(result[:, start:stop].fill, self.fill(node.attributes))
        workspace = record.scratch[0] if record.scratch else None
        lines, rows = result.shape[:2] if workspace is None else workspace.shape[:2]
        for run in _runs(table):
            for part in run.cut(rows):
                for top in range(0, len(result), lines):
                    band = slice(top, min(top + lines, len(result)))
                    part.record(record, source[band], result[band], workspace)


def folded(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return `shape` folded to three axes: (elements before, extent of, elements after) `axis`."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@functools.lru_cache(maxsize=256)
def _tabled(op: AxisMap, attributes: Any, extent: int) -> Table:
    if not op.transposes:
        return op.forward_table(attributes, extent, attributes.extent)
    return op.forward_table(attributes, attributes.extent, extent).transposed(attributes.extent)


def _ranges(mask: Array) -> Iterator[tuple[int, int]]:
    """Yield the intervals in which a mask is true, as `[start, stop)`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


class _Run(NamedTuple):
    """One term of each of several adjacent results, from `start` on: source indices and weights."""

    start: int
    places: Array
    weights: Array
    is_first: bool

    @property
    def needs_workspace(self) -> bool:
        return self.part is None or not (self.is_first or self.is_plain)

    @property
    def is_plain(self) -> bool:
        return bool((self.weights == 1.0).all())

    @property
    def part(self) -> slice | None:
        """The source indices as a slice, of one element if all are equal.

        None if they are not evenly spaced.
        """
        first, steps = int(self.places[0]), np.diff(self.places)
        step = int(steps[0]) if len(steps) else 1
        if (steps != step).any():
            return None
        if step == 0:
            return slice(first, first + 1)
        stop = first + step * len(self.places)
        return slice(first, stop if stop >= 0 else None, step)

    def cut(self, rows: int) -> Iterator[_Run]:
        """Yield the run in pieces of at most `rows` results."""
        for at in range(0, len(self.places), rows):
            piece = slice(at, at + rows)
            yield _Run(self.start + at, self.places[piece], self.weights[piece], self.is_first)

    def record(
        self, record: Recorder, source: Array, result: Array, workspace: Array | None
    ) -> None:
        """Record the calls that write the first terms to the results, or add later terms to
        them."""
        target = result[:, self.start : self.start + len(self.places)]
        held = target
        if workspace is not None:
            held = workspace.reshape(-1)[: target.size].reshape(target.shape)
        part = self.part
        if part is None:
            record(np.take, source, self.places, 1, held, "clip")
            found = held
        else:
            found = source[:, part]
        if self.is_plain:
            if self.is_first:
                record(np.copyto, target, found)
            else:
                record(np.add, target, found, out=target)
            return
        weights = self.weights.astype(target.dtype)[:, None]
        weighted = target if self.is_first else held
        record(np.multiply, found, weights, out=weighted)
        if not self.is_first:
            record(np.add, target, weighted, out=target)


@functools.lru_cache(maxsize=64)
def _runs(table: Table) -> tuple[_Run, ...]:
    """Group the terms of a table into runs: the first terms of results, then the second ones."""
    found, counts = [], table.counts
    for tap in range(int(counts.max())):
        for start, stop in _ranges(counts > tap):
            at = table.starts[start:stop] + tap
            found.append(_Run(start, table.places[at], table.weights[at], tap == 0))
    return tuple(found)
