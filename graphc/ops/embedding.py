"""Ops that select by integer: row gather, its gradient, and one-hot encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, ShapeError, whole_number
from graphc.ir.attributes import DTypeName, Whole
from graphc.ir.builder import apply, layer_scope, parameter
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, as_dtype, bool_, int64
from graphc.ops.accumulation import check_sum, start_sum
from graphc.ops.weights import agree, given_weight, not_given


def require_integers(type: TensorType, what: str) -> None:
    """Raise `DTypeError` unless `type` has integer elements."""
    if type.dtype.kind != "int":
        raise DTypeError(f"{what} must be integers, got {type.dtype}; convert with graphc.cast")


def _rows_bytes(table: TensorType, rows: TensorType) -> int:
    """Return the most bytes that a lookup with the result `rows` reads, if it reads a row once."""
    return min(table.bytes, rows.bytes)


class Gather(Op):
    """y[..., :] = table[indices[...], :]: rows of a table by index."""

    name, inputs = "gather", ("table", "indices")
    indices = ("indices",)
    precision = "lookup"
    needs_contiguous = ("table",)
    native_16_bit = True

    def infer(self, attributes: Any, table: TensorType, indices: TensorType) -> TensorType:
        require_integers(indices, "indices")
        if table.rank < 1:
            raise ShapeError("the table needs at least one axis")
        return table.with_shape(indices.shape + table.shape[1:])

    def gradient_table(self, node: Node, dy: Value, indices: Value) -> Value:
        rows = RowsAttributes(node.inputs[0].shape[0])
        return apply(GatherGradient, dy, indices, attributes=rows).output

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[0]

    def cost(self, node: Node) -> Cost:
        """Count reads of table rows, each row once: at most min(rows, number of indices)."""
        table, indices = node.inputs
        rows = _rows_bytes(table.type, node.output.type)
        return Cost(0, rows + indices.type.bytes, node.output.type.bytes)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: the indices in the integer type that NumPy uses for lookups."""
        return (node.inputs[1].type.with_dtype(int64),)

    def kernel(
        self, record: Recorder, node: Node, table: Array, indices: Array, *, y: Array
    ) -> None:
        (rows,) = record.scratch
        record(np.copyto, rows, indices)
        record(np.take, table, rows, 0, y, "clip")  # "clip" is the mode without a buffer


@dataclass(frozen=True, slots=True)
class RowsAttributes:
    """The number of rows of the table, and whether they are added to a running sum."""

    rows: Annotated[int, Whole(1)]
    accumulate: bool = False


class GatherGradient(Op):
    """The table's gradient: rows of dy summed by index, always in the same order."""

    name, inputs, outputs = "gather_gradient", ("dy", "indices", "*sum"), ("dtable",)
    indices = ("indices",)
    may_overwrite = {"dtable": ("sum",)}
    needs_contiguous = ("dy", "indices")
    attributes = RowsAttributes

    def infer(
        self,
        attributes: RowsAttributes,
        dy: TensorType,
        indices: TensorType,
        *sum: TensorType,
    ) -> TensorType:
        require_integers(indices, "indices")
        if dy.shape[: indices.rank] != indices.shape or dy.dtype == bool_:
            raise ShapeError(f"dy must have one row for each of {indices}, got {dy}")
        dtable = dy.with_shape((attributes.rows, *dy.shape[indices.rank :]))
        check_sum(attributes.accumulate, sum, dtable)
        return dtable

    def index_limit(self, node: Node) -> int:
        rows: int = node.attributes.rows
        return rows

    def gradient_dy(self, node: Node, ddtable: Value, indices: Value) -> Value:
        return apply(Gather, ddtable, indices).output

    def gradient_sum(self, node: Node, ddtable: Value) -> tuple[Value, ...]:
        return (ddtable,) if node.attributes.accumulate else ()

    def cost(self, node: Node) -> Cost:
        """Count only the updated rows of a running sum, which is overwritten.

        Without a running sum the whole table is written, since it starts with zeros.
        """
        dy, indices, *sums = node.inputs
        dtable, read = node.output.type, dy.type.bytes + indices.type.bytes
        if not sums:
            return Cost(dy.type.elements, read, dtable.bytes)
        rows = _rows_bytes(dtable, dy.type)
        return Cost(dy.type.elements, read + rows, rows)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: the indices in the integer type that NumPy uses for lookups."""
        return (node.inputs[1].type.with_dtype(int64),)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, indices: Array, *sum: Array, dtable: Array
    ) -> None:
        (rows,) = record.scratch
        start_sum(record, sum, dtable)
        record(np.copyto, rows, indices)
        flat = dtable.reshape(dtable.shape[0], -1), dy.reshape(rows.size, -1)
        record(_add_rows, rows.reshape(-1), *flat)


def _add_rows(rows: Array, table: Array, dy: Array) -> None:
    # Column by column: `np.add.at` along one axis is fast and allocates nothing.
    for column in range(table.shape[1]):
        np.add.at(table[:, column], rows, dy[:, column])


@dataclass(frozen=True, slots=True)
class OneHotAttributes:
    """The length of a code and its dtype."""

    classes: Annotated[int, Whole(1)]
    dtype: Annotated[str, DTypeName()]


class OneHot(Op):
    """y[..., k] = 1 where k is the index, else 0."""

    name, inputs = "one_hot", ("indices",)
    attributes = OneHotAttributes
    native_16_bit = True

    def infer(self, attributes: OneHotAttributes, indices: TensorType) -> TensorType:
        require_integers(indices, "indices")
        return TensorType((*indices.shape, attributes.classes), as_dtype(attributes.dtype))

    def index_limit(self, node: Node) -> int:
        classes: int = node.attributes.classes
        return classes

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: the class numbers, twice."""
        return (TensorType((2, node.attributes.classes), int64),)

    def kernel(self, record: Recorder, node: Node, indices: Array, *, y: Array) -> None:
        (numbers,) = record.scratch
        record(numbers[1].fill, 1)
        record(np.add.accumulate, numbers[1], out=numbers[0])
        record(np.subtract, numbers[0], 1, out=numbers[0])
        record(np.equal, indices[..., None], numbers[0], out=y, casting="unsafe")


def gather(table: Value, indices: Value) -> Value:
    """Select rows of `table` by index: the shape is `indices.shape + table.shape[1:]`.

    `indices` are integers from 0 to below `table.shape[0]`. Running a step with other indices
    raises `FeedError`. The gradient of a row of the table is the sum over its uses. Raises
    `DTypeError` if indices are not integers.
    """
    return apply(Gather, table, indices).output


def embedding(
    indices: Value,
    rows: int | None = None,
    width: int | None = None,
    dtype: object = "float32",
    deviation: float = 0.02,
    name: str | None = None,
    weight: Value | None = None,
) -> Value:
    """Select rows of a learned table: the shape is `indices.shape + (width,)`.

    Creates ``weight`` (rows, width), normal with the standard deviation `deviation`, in the current
    scope, or in ``name`` inside it. If a `weight` is given, for example one shared with another
    layer, nothing is created. Raises the errors of `gather`, and `ShapeError` for sizes that differ
    from those of the weight.
    """
    with layer_scope("embedding", name):
        if weight is not None:
            table = given_weight("embedding", weight, "(rows, width)")
            sizes = {"rows": (rows, table.shape[0]), "width": (width, table.shape[1])}
            agree("embedding", table, sizes)
            return gather(table, indices)
        if rows is None or width is None:
            raise not_given("embedding", rows=rows, width=width)
        table = parameter("weight", (rows, width), dtype, Initial("normal", deviation))
        return gather(table, indices)


def one_hot(indices: Value, classes: int, dtype: object = "float32") -> Value:
    """Encode indices as codes of length `classes`: 1 at the index, else 0, on a new last axis.

    `indices` are integers from 0 to below `classes`. Running a step with other indices raises
    `FeedError`. Raises `OptionError` for fewer than one class, and `DTypeError` if indices are not
    integers.
    """
    classes = whole_number("one_hot: classes", classes)
    attributes = OneHotAttributes(classes, as_dtype(dtype).name)
    return apply(OneHot, indices, attributes=attributes).output
