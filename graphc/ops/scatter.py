"""Gather and scatter by tuples of indices, or by indices along an axis.

x has the axes (batch..., numbered..., rest...), and indices (batch..., lookups..., number of
numbered axes). Each lookup is a tuple with one index per numbered axis. It selects a row of x: the
elements along the axes `rest`. A negative index counts from the end of its axis, as in NumPy.
Updates of one row are combined in the order of the lookups, so sums have the same bits on all
devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, ShapeError, choose
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, bool_, int64
from graphc.ops.choice import cast, equal, where
from graphc.ops.cpu.scatter import LOOKUPS, combine_rows, take_rows
from graphc.ops.elementwise import div, mul, same_dtype, sub, zero
from graphc.ops.embedding import require_integers
from graphc.ops.scan import cumsum
from graphc.ops.shape import full, reshape


@dataclass(frozen=True, slots=True)
class TupleAttributes:
    """The number of leading batch axes of x and indices."""

    batch: Annotated[int, Whole()] = 0


@dataclass(frozen=True, slots=True)
class Lookups:
    """The extents of x and indices, by kind of axis, for a selection of rows by index tuples."""

    batch: tuple[int, ...]
    numbered: tuple[int, ...]
    rest: tuple[int, ...]
    lookups: tuple[int, ...]

    @property
    def updates(self) -> tuple[int, ...]:
        """The shape of all selected rows, and so of updates."""
        return (*self.batch, *self.lookups, *self.rest)

    @property
    def rows(self) -> int:
        """The number of rows in one entry of the batch."""
        return math.prod(self.numbered)

    @property
    def each(self) -> int:
        """The number of lookups in one entry of the batch."""
        return math.prod(self.lookups)

    @property
    def count(self) -> int:
        """The number of lookups in the whole batch."""
        return math.prod(self.batch) * self.each


def lookups_of(attributes: TupleAttributes, x: TensorType, indices: TensorType) -> Lookups:
    """Return the extents of a selection of rows of x; raises `ShapeError` or `DTypeError`."""
    require_integers(indices, "indices")
    batch = attributes.batch
    if indices.rank <= batch or x.shape[:batch] != indices.shape[:batch]:
        raise ShapeError(
            f"x and indices must have equal first {batch} axes, and indices one more axis for the "
            f"index tuples; got {x} and {indices}"
        )
    width = indices.shape[-1]
    if batch + width > x.rank:
        raise ShapeError(
            f"an index tuple must not be longer than the axes of x after the first {batch}, got "
            f"{x} and {indices}"
        )
    numbered, rest = x.shape[batch : batch + width], x.shape[batch + width :]
    return Lookups(x.shape[:batch], numbered, rest, indices.shape[batch:-1])


class Tuples(Op):
    """Base: tuples of indices select rows of the first operand."""

    attributes = TupleAttributes
    indices = ("indices",)
    counts_from_end = True

    def index_limit(self, node: Node) -> tuple[int, ...]:
        return self.lookups(node).numbered

    def lookups(self, node: Node) -> Lookups:
        """Return the extents of the node's selection of rows."""
        x, indices, *_ = node.inputs
        return lookups_of(node.attributes, x.type, indices.type)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: numbers of a block of rows, and integers to compute them."""
        count = min(LOOKUPS, self.lookups(node).count)
        return (TensorType((2, count), int64),)


class GatherND(Tuples):
    """y[batch, lookup, rest] = x[batch, indices[batch, lookup], rest]."""

    name, inputs = "gather_nd", ("x", "indices")
    needs_contiguous = ("x", "indices")
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: TupleAttributes, x: TensorType, indices: TensorType) -> TensorType:
        return x.with_shape(lookups_of(attributes, x, indices).updates)

    def gradient_x(self, node: Node, dy: Value, indices: Value) -> Value:
        x = node.inputs[0].type.with_dtype(dy.type.dtype)
        nothing = full(x.shape, 0.0, x.dtype)
        return apply(ScatterAdd, nothing, indices, dy, attributes=node.attributes).output

    def cost(self, node: Node) -> Cost:
        """Count reads of rows, each row at most once."""
        x, indices = node.inputs
        read = min(x.type.bytes, node.output.type.bytes)
        return Cost(0, read + indices.type.bytes, node.output.type.bytes)

    def kernel(self, record: Recorder, node: Node, x: Array, indices: Array, *, y: Array) -> None:
        record(functools.partial(take_rows, self.lookups(node), x, indices, y, *record.scratch))


class Scatter(Tuples):
    """Base: y = x, with the selected rows combined with rows of updates."""

    inputs = ("x", "indices", "updates")
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("indices", "updates")
    ufunc: ClassVar[np.ufunc | None] = None
    """The function that combines a row with an update; None if the update replaces the row."""

    def infer(
        self, attributes: TupleAttributes, x: TensorType, indices: TensorType, updates: TensorType
    ) -> TensorType:
        if same_dtype(x, updates) == bool_ and self.ufunc is not None:
            raise DTypeError("bool supports only the reduction 'none'; convert with graphc.cast")
        wanted = lookups_of(attributes, x, indices).updates
        if updates.shape != wanted:
            raise ShapeError(f"updates must have the shape {list(wanted)}, got {updates}")
        return x

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        flops = node.inputs[2].type.elements if self.ufunc is not None else 0
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def kernel(
        self, record: Recorder, node: Node, x: Array, indices: Array, updates: Array, *, y: Array
    ) -> None:
        if not np.shares_memory(x, y):
            record(np.copyto, y, x)
        found = self.lookups(node)
        record(functools.partial(
            combine_rows, self.ufunc, found, indices, updates, y, *record.scratch
        ))  # fmt: skip


class ScatterReplace(Scatter):
    """y = x with rows replaced; the last update of a row wins."""

    name = "scatter_nd"
    native_16_bit = True

    def gradient_x(self, node: Node, dy: Value, indices: Value) -> Value:
        nothing = full(node.inputs[2].shape, 0.0, dy.type.dtype)
        return apply(ScatterReplace, dy, indices, nothing, attributes=node.attributes).output

    def gradient_updates(self, node: Node, dy: Value, indices: Value) -> Value:
        taken = _taken(node, dy, indices)
        return where(_stays(node, indices), taken, zero(taken))


def _stays(node: Node, indices: Value) -> Value:
    """Return the mask of updates that are not overwritten by a later update of the same row."""
    assert isinstance(node.op, Tuples)
    found = node.op.lookups(node)
    first = cumsum(full((found.count,), 1.0, int64), 0, exclusive=True)
    number = reshape(first, (*found.batch, *found.lookups))
    rows = full((*found.batch, *found.numbered), 0.0, int64)
    last = apply(ScatterReplace, rows, indices, number, attributes=node.attributes).output
    stays = equal(_taken(node, last, indices), number)
    return reshape(stays, (*stays.shape, *(1,) * len(found.rest)))


class ScatterAdd(Scatter):
    """y = x with updates added to rows."""

    name = "scatter_nd_add"
    ufunc = np.add

    def gradient_x(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_updates(self, node: Node, dy: Value, indices: Value) -> Value:
        return _taken(node, dy, indices)


class ScatterMultiply(Scatter):
    """y = x with rows multiplied by updates."""

    name = "scatter_nd_mul"
    ufunc = np.multiply

    def gradient_x(self, node: Node, dy: Value, indices: Value, updates: Value) -> Value:
        ones = full(node.inputs[0].shape, 1.0, dy.type.dtype)
        factor = apply(ScatterMultiply, ones, indices, updates, attributes=node.attributes).output
        return mul(dy, factor)

    def gradient_updates(
        self, node: Node, dy: Value, x: Value, indices: Value, updates: Value
    ) -> Value:
        """Return dy times the product of all other factors of the row.

        Factors that are 0 are first omitted from the product. If exactly one of the other factors
        is 0, the product is then multiplied by that factor, so that its own derivative is exact.
        If several are 0, the product and its first derivative are 0.
        """
        x_is_0, is_0 = equal(x, zero(x)), equal(updates, zero(updates))
        own = where(is_0, updates, zero(updates))
        one = full((), 1.0, x.type.dtype)
        factors = where(is_0, one, updates)
        product = apply(
            ScatterMultiply, where(x_is_0, one, x), indices, factors, attributes=node.attributes
        ).output
        zeros = apply(
            ScatterAdd, cast(x_is_0, x.type.dtype), indices, cast(is_0, x.type.dtype),
            attributes=node.attributes,
        ).output  # fmt: skip
        nothing = apply(
            ScatterAdd, where(x_is_0, x, zero(x)), indices, own, attributes=node.attributes
        ).output
        others = sub(_taken(node, zeros, indices), cast(is_0, x.type.dtype))
        rest = div(_taken(node, mul(dy, product), indices), factors)
        last = mul(rest, sub(_taken(node, nothing, indices), own))
        product_of_others = where(equal(others, one), last, zero(rest))
        return where(equal(others, zero(others)), rest, product_of_others)


class ScatterExtreme(Scatter):
    """Base: y = x with the maxima or minima of rows and updates.

    Equal maxima or minima share the gradient evenly.
    """

    def gradient_x(
        self, node: Node, dy: Value, x: Value, indices: Value, updates: Value, y: Value
    ) -> Value:
        hit, _, share = _shares(node, dy, x, indices, updates, y)
        return mul(hit, share)

    def gradient_updates(
        self, node: Node, dy: Value, x: Value, indices: Value, updates: Value, y: Value
    ) -> Value:
        _, hit, share = _shares(node, dy, x, indices, updates, y)
        return mul(hit, _taken(node, share, indices))


def _shares(
    node: Node, dy: Value, x: Value, indices: Value, updates: Value, y: Value
) -> tuple[Value, Value, Value]:
    """Return the masks x == y and updates == y as floats, and dy over their number of ones."""
    dtype = dy.type.dtype
    own = cast(equal(x, y), dtype)
    others = cast(equal(updates, _taken(node, y, indices)), dtype)
    count = apply(ScatterAdd, own, indices, others, attributes=node.attributes).output
    return own, others, div(dy, count)


class ScatterMax(ScatterExtreme):
    """y = x with the maximum of a row and its updates."""

    name = "scatter_nd_max"
    ufunc = np.maximum


class ScatterMin(ScatterExtreme):
    """y = x with the minimum of a row and its updates."""

    name = "scatter_nd_min"
    ufunc = np.minimum


def _taken(node: Node, rows: Value, indices: Value) -> Value:
    """Return the selected rows of a tensor with the shape, or the leading axes, of the node's x."""
    return apply(GatherND, rows, indices, attributes=node.attributes).output


SCATTERS: Mapping[str, type[Scatter]] = {
    "none": ScatterReplace,
    "add": ScatterAdd,
    "mul": ScatterMultiply,
    "max": ScatterMax,
    "min": ScatterMin,
}
"""Reduction → the op that computes it."""


# --- functions ---


def gather_nd(x: Value, indices: Value, batch: int = 0) -> Value:
    """Select rows of x by tuples of indices: ``y[b, j] = x[(b, *indices[b, j])]``.

    The first `batch` axes of x and `indices` are the same. The last axis of `indices` is a tuple
    with an index for each following axis of x. The shape is that of `indices` without its last
    axis, then the remaining axes of x. A negative index counts from the end. Running a step with
    indices out of range raises `FeedError`. Raises `ShapeError` for shapes that do not fit, and
    `DTypeError` if indices are not integers.
    """
    return apply(GatherND, x, indices, attributes=TupleAttributes(batch)).output


def scatter_nd(
    x: Value, indices: Value, updates: Value, reduction: str = "none", batch: int = 0
) -> Value:
    """Combine the rows of x selected by tuples of indices with rows of `updates`.

    The result has the shape of x. `updates` has the shape and order of ``gather_nd(x, indices,
    batch)``. `reduction` is "none", which replaces rows so that the last update wins, or "add",
    "mul", "max" or "min".

    The gradient is exact for rows selected more than once. With "none", the last update of a row
    gets the gradient; with "max" and "min", equal extremes share it. First and second derivatives
    of "mul" are exact even if factors are 0. Higher ones are exact if no two factors of a row are
    0. Raises the errors of `gather_nd`, and `OptionError` for another reduction.
    """
    op = SCATTERS[choose("reduction", reduction, tuple(SCATTERS))]
    return apply(op, x, indices, updates, attributes=TupleAttributes(batch)).output
