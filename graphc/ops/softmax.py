"""Softmax and log-softmax over one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, ShapeError
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, bool_, broadcast_shapes, normalize_axis
from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS
from graphc.ops.elementwise import exp, float_dtype, mul, sub
from graphc.ops.reduce import sum
from graphc.ops.shape import AxisAttributes


class AlongAxis(Op):
    """Base: one float type in and out, with reductions over rows along one axis.

    `lines` processes one tile of whole rows. The size of a tile limits the scratch.
    """

    attributes = AxisAttributes
    flops_per_element = 12
    any_strides = True

    def infer(self, attributes: AxisAttributes, *types: TensorType) -> TensorType:
        float_dtype(*types)
        normalize_axis(attributes.axis, types[0].rank, "axis")
        if any(type.shape != types[0].shape for type in types):
            raise ShapeError(
                f"operands must have equal shapes, got {' and '.join(map(str, types))}"
            )
        return types[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: one number per row of a tile, and one tile."""
        axis, tile = node.attributes.axis, list(node.output.shape)
        cut = _cut_axis(node.output.shape, axis)
        if cut is not None:
            rest = node.output.type.elements // tile[cut]
            tile[cut] = min(tile[cut], max(1, TILE_ELEMENTS // rest))
        number = [1 if i == axis else n for i, n in enumerate(tile)]
        return (node.output.type.with_shape(number), node.output.type.with_shape(tile))

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        """Compute whole rows; `number` and `tile` are scratch."""
        raise NotImplementedError

    def kernel(self, record: Recorder, node: Node, *inputs: Array, **outputs: Array) -> None:
        axis, (out,) = node.attributes.axis, outputs.values()
        cut = _cut_axis(out.shape, axis)
        if cut is None:
            record(self.lines, axis, inputs, out, *record.scratch)
        else:
            record(_run_tiles, self.lines, axis, cut, inputs, out, *record.scratch)


def _cut_axis(shape: tuple[int, ...], axis: int) -> int | None:
    """Return the axis that tiles divide: the longest one other than `axis`, or None."""
    others = [i for i in range(len(shape)) if i != axis]
    return max(others, key=lambda i: (shape[i], -i), default=None)


def _run_tiles(
    lines: Callable[..., None],
    axis: int,
    cut: int,
    inputs: Sequence[Array],
    out: Array,
    number: Array,
    tile: Array,
) -> None:
    before, step = (slice(None),) * cut, tile.shape[cut]
    for start in range(0, out.shape[cut], step):
        part = (*before, slice(start, start + step))
        workspace = (*before, slice(0, out.shape[cut] - start))
        lines(axis, [x[part] for x in inputs], out[part], number[workspace], tile[workspace])


class Softmax(AlongAxis):
    """y = exp(x - max x) / sum of exp(x - max x), along the axis."""

    name, inputs = "softmax", ("x",)
    may_overwrite = {"y": ("x",)}

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(SoftmaxGradient, y, dy, attributes=node.attributes).output

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        (x,) = inputs
        np.maximum.reduce(x, axis, out=number, keepdims=True)
        np.subtract(x, number, out=out)
        np.exp(out, out=out)
        np.add.reduce(out, axis, out=number, keepdims=True)
        np.divide(out, number, out=out)


CAUSAL_ROWS = 32
"""The number of rows that `CausalSoftmax` processes at a time."""


class CausalSoftmax(Op):
    """Softmax over the last axis of x (..., rows, columns) with a causal mask.

    Row i attends to no column that belongs to a later row: y is 0 beyond column i + columns - rows.
    No mask is stored.
    """

    name, inputs = "causal_softmax", ("x",)
    may_overwrite = {"y": ("x",)}
    flops_per_element = 6
    any_strides = True

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        float_dtype(x)
        if x.rank < 2 or x.shape[-2] > x.shape[-1]:
            raise ShapeError(
                f"x must be (..., rows, columns) with at least as many columns as rows, got {x}"
            )
        return x

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        """Return the gradient of softmax: it is 0 wherever y is 0."""
        attributes = AxisAttributes(node.output.type.rank - 1)
        return apply(SoftmaxGradient, y, dy, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: one number per row of a block of rows."""
        *batch, rows, _ = node.output.shape
        return (node.output.type.with_shape((*batch, min(CAUSAL_ROWS, rows), 1)),)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        (number,) = record.scratch
        rows, columns = y.shape[-2:]
        for first in range(0, rows, CAUSAL_ROWS):
            last = min(first + CAUSAL_ROWS, rows)
            seen, block = last + columns - rows, (..., slice(first, last))
            lines = number[..., : last - first, :]
            record(_causal_rows, x[(*block, slice(seen))], y[(*block, slice(seen))], lines)
            record(np.copyto, y[(*block, slice(seen, None))], 0)


def _causal_rows(x: Array, y: Array, number: Array) -> None:
    """Compute rows of causal softmax; the last one attends to all columns."""
    rows, columns = y.shape[-2:]
    np.copyto(y, x)
    for row in range(rows - 1):
        y[..., row, columns - rows + row + 1 :] = -np.inf
    np.maximum.reduce(y, -1, out=number, keepdims=True)
    np.subtract(y, number, out=y)
    np.exp(y, out=y)
    np.add.reduce(y, -1, out=number, keepdims=True)
    np.divide(y, number, out=y)


class MaskedSoftmax(AlongAxis):
    """Softmax over the elements of a row at which the mask is true; other elements of y are 0.

    A row without selected elements is 0 and gets no gradient. In any other row, the sum of exp(x -
    max x) is at least 1, so dividing by max(sum, 1) is exact.
    """

    name, inputs = "masked_softmax", ("x", "mask")
    may_overwrite = {"y": ("x",)}

    def infer(self, attributes: AxisAttributes, *types: TensorType) -> TensorType:
        x, mask = types
        if mask.dtype != bool_:
            raise DTypeError(f"the mask must be bool (true: the element counts), got {mask}")
        if broadcast_shapes(self.name, x.shape, mask.shape) != x.shape:
            raise ShapeError(f"the mask {mask} does not broadcast to {x}")
        return super().infer(attributes, x)

    def gradient_x(self, node: Node, dy: Value, y: Value) -> Value:
        """Return the gradient of softmax: it is 0 wherever y is 0."""
        return apply(SoftmaxGradient, y, dy, attributes=node.attributes).output

    def kernel(self, record: Recorder, node: Node, *inputs: Array, **outputs: Array) -> None:
        x, mask = inputs
        super().kernel(record, node, x, np.broadcast_to(mask, x.shape), **outputs)

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        x, mask = inputs
        np.copyto(tile, -np.inf)
        np.copyto(tile, x, where=mask)
        np.maximum.reduce(tile, axis, out=number, keepdims=True)
        np.maximum(number, np.finfo(number.dtype).min, out=number)
        np.subtract(tile, number, out=out)
        np.exp(out, out=out)
        np.add.reduce(out, axis, out=number, keepdims=True)
        np.maximum(number, 1, out=number)
        np.divide(out, number, out=tile)
        out.fill(0)  # also if NaN or infinity in a row makes the rest of it NaN
        np.copyto(out, tile, where=mask)


class SoftmaxGradient(AlongAxis):
    """dx = y · (dy - sum of dy · y along the axis)."""

    name, inputs, outputs = "softmax_gradient", ("y", "dy"), ("dx",)
    flops_per_element = 4
    may_overwrite = {"dx": ("y", "dy")}

    def gradient_y(self, node: Node, ddx: Value, y: Value, dy: Value) -> Value:
        axis = node.attributes.axis
        centred = sub(dy, sum(mul(dy, y), axis, keepdims=True))
        return sub(mul(ddx, centred), mul(dy, sum(mul(ddx, y), axis, keepdims=True)))

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        return apply(SoftmaxGradient, y, ddx, attributes=node.attributes).output

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        y, dy = inputs
        np.multiply(y, dy, out=tile)
        np.add.reduce(tile, axis, out=number, keepdims=True)
        np.subtract(dy, number, out=tile)
        np.multiply(tile, y, out=out)


class LogSoftmax(AlongAxis):
    """y = x - log of the sum of exp(x), along the axis."""

    name, inputs = "log_softmax", ("x",)
    precision = "wide"
    may_overwrite = {"y": ("x",)}

    def gradient(self, node: Node, dy: Value, y: Value) -> Value:
        return apply(LogSoftmaxGradient, y, dy, attributes=node.attributes).output

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        (x,) = inputs
        np.maximum.reduce(x, axis, out=number, keepdims=True)
        np.subtract(x, number, out=out)
        np.exp(out, out=tile)
        np.add.reduce(tile, axis, out=number, keepdims=True)
        np.log(number, out=number)
        np.subtract(out, number, out=out)


class LogSoftmaxGradient(AlongAxis):
    """dx = dy - exp(y) · sum of dy along the axis."""

    name, inputs, outputs = "log_softmax_gradient", ("y", "dy"), ("dx",)
    may_overwrite = {"dx": ("y", "dy")}

    def gradient_y(self, node: Node, ddx: Value, y: Value, dy: Value) -> Value:
        total = sum(dy, node.attributes.axis, keepdims=True)
        return -mul(mul(ddx, exp(y)), total)

    def gradient_dy(self, node: Node, ddx: Value, y: Value) -> Value:
        weighted = sum(mul(ddx, exp(y)), node.attributes.axis, keepdims=True)
        return sub(ddx, weighted)

    @staticmethod
    def lines(axis: int, inputs: Sequence[Array], out: Array, number: Array, tile: Array) -> None:
        y, dy = inputs
        np.add.reduce(dy, axis, out=number, keepdims=True)
        np.exp(y, out=tile)
        np.multiply(tile, number, out=tile)
        np.subtract(dy, tile, out=out)


def softmax(x: Value, axis: int = -1) -> Value:
    """Return exp(x) / sum(exp(x)) along `axis`, without overflow; keeps shape and dtype of float x.

    Raises `ShapeError` for an axis that x does not have.
    """
    rank = as_value("softmax", x).type.rank
    attributes = AxisAttributes(normalize_axis(axis, rank, "softmax"))
    return apply(Softmax, x, attributes=attributes).output


def masked_softmax(x: Value, mask: Value, axis: int = -1) -> Value:
    """Compute softmax along `axis` over the elements at which bool `mask` is true; others are 0.

    The mask broadcasts to float x, and the result has the shape of x. If no element of a row is
    selected, the row is 0 and gets a gradient of 0. Masked elements of x have no influence. Raises
    `DTypeError` for another mask, and `ShapeError` for one that does not broadcast or an axis that
    x does not have.
    """
    rank = as_value("masked_softmax", x).type.rank
    attributes = AxisAttributes(normalize_axis(axis, rank, "masked_softmax"))
    return apply(MaskedSoftmax, x, mask, attributes=attributes).output


def causal_softmax(x: Value) -> Value:
    """Compute softmax over the last axis of x (..., rows, columns) with a causal mask.

    The last row attends to all columns, the row before it to all but the last one, and so on. Other
    elements of the result are 0. Raises `ShapeError` for more rows than columns.
    """
    return apply(CausalSoftmax, x).output


def log_softmax(x: Value, axis: int = -1) -> Value:
    """Return the logarithm of softmax along `axis`, finite where softmax underflows.

    Keeps the shape.

    Raises `ShapeError` for an axis that x does not have.
    """
    attributes = AxisAttributes(
        normalize_axis(axis, as_value("log_softmax", x).type.rank, "log_softmax")
    )
    return apply(LogSoftmax, x, attributes=attributes).output
