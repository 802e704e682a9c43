"""Cumulative sums along an axis."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, truth
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, bool_, normalize_axis
from graphc.ops.cpu.lines import line_tiles, lines_of, workspace_for


@dataclass(frozen=True, slots=True)
class CumsumAttributes:
    """The axis, whether a sum excludes the element itself, and whether it starts at the end."""

    axis: Annotated[int, Whole()]
    exclusive: bool = False
    reverse: bool = False


class Cumsum(Op):
    """y[i] = x[0] + ... + x[i] along an axis. Integers keep their dtype, so sums wrap around."""

    name, inputs = "cumsum", ("x",)
    attributes = CumsumAttributes
    precision = "wide"
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    flops_per_element = 1
    any_strides = True

    def infer(self, attributes: CumsumAttributes, x: TensorType) -> TensorType:
        if x.dtype == bool_:
            raise DTypeError("bool cannot be summed; convert with graphc.cast")
        normalize_axis(attributes.axis, x.rank, "axis")
        return x

    def gradient(self, node: Node, dy: Value) -> Value:
        a: CumsumAttributes = node.attributes
        return cumsum(dy, a.axis, a.exclusive, not a.reverse)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: a tile of rows."""
        tiles = line_tiles(node.output.shape, node.attributes.axis)
        return (node.output.type.with_shape((tiles.lines, tiles.length)),)

    def kernel(self, record: Recorder, node: Node, x: Array, *, y: Array) -> None:
        record(functools.partial(_add_up, node.attributes, x, y, *record.scratch))


def _add_up(attributes: CumsumAttributes, x: Array, y: Array, workspace: Array) -> None:
    axis, step = attributes.axis, -1 if attributes.reverse else 1
    for tile in line_tiles(x.shape, axis):
        source, target = (lines_of(array, axis, tile)[..., ::step] for array in (x, y))
        lines = workspace_for(source, workspace)
        if attributes.exclusive:
            np.copyto(lines[..., 1:], source[..., :-1])
            lines[..., 0] = 0
        else:
            np.copyto(lines, source)
        np.add.accumulate(lines, -1, lines.dtype, lines)
        np.copyto(target, lines)


def cumsum(x: Value, axis: int, exclusive: bool = False, reverse: bool = False) -> Value:
    """Sum all elements of x up to each one, along `axis`; keeps the shape.

    An `exclusive` sum excludes the element itself, so it starts with 0. A `reverse` sum starts at
    the end. Raises `DTypeError` for bool, and `ShapeError` for an axis that x does not have.
    """
    place = normalize_axis(axis, as_value("cumsum", x).type.rank, "cumsum")
    attributes = CumsumAttributes(
        place, truth("cumsum: exclusive", exclusive), truth("cumsum: reverse", reverse)
    )
    return apply(Cumsum, x, attributes=attributes).output
