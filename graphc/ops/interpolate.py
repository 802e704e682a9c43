"""Interpolation of maps at computed sample points, its gradients, and `grid_sample`.

A point has one coordinate per axis, the last axis first, in elements: 0 is the first element of x.
The result at a point is a weighted sum of the one, two or four nearest elements along each axis. A
weight is the product of one weight per axis. The coefficient of Keys' cubic kernel is -0.75. The
CPU arithmetic is in `graphc.ops.cpu.interpolation`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import GradientError, OptionError, ShapeError, choose, truth
from graphc.ir.attributes import OneOf, Whole
from graphc.ir.builder import apply, as_value, constant
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, bool_, int64
from graphc.ops.choice import maximum, minimum, where
from graphc.ops.cpu import interpolation
from graphc.ops.elementwise import add, float_dtype, mul, sub
from graphc.ops.geometry import COUNTED
from graphc.ops.indexing import slice_
from graphc.ops.rounding import abs, floor
from graphc.ops.shape import reshape

FORMS = ("nearest", "linear", "cubic")
OUTSIDE = ("zeros", "edge", "reflect", "symmetric")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Interpolation form → number of elements along an axis that a point reads."""

TILE_BYTES = 4 * 2**20
"""The most bytes of scratch; the device may allow fewer, and a single point may need more."""

MOST_AXES = 3

Extents = Annotated[tuple[int, ...], Whole(1, COUNTED)]


@dataclass(frozen=True, slots=True)
class InterpolateAttributes:
    """The interpolation kernel, and the treatment of elements beyond the ends."""

    form: Annotated[str, OneOf(FORMS)] = "linear"
    outside: Annotated[str, OneOf(OUTSIDE)] = "zeros"


@dataclass(frozen=True, slots=True)
class InterpolateGradientAttributes:
    """The attributes of the forward op, and the extents of the maps after their channels."""

    extents: Extents
    form: Annotated[str, OneOf(FORMS)] = "linear"
    outside: Annotated[str, OneOf(OUTSIDE)] = "zeros"


class Interpolation(Op):
    """Base of ops on x (batch, channels, *extents) and points `places` (batch, *shape, axes)."""

    any_strides = True
    precision = "wide"

    def sampled(self, x: TensorType, places: TensorType) -> TensorType:
        """Return the type of x interpolated at the points `places`.

        Raises an error for other shapes.
        """
        float_dtype(x, places)
        axes = x.rank - 2
        if not 1 <= axes <= MOST_AXES or places.rank < 2 or places.shape[-1] != axes:
            raise ShapeError(
                f"x must be (batch, channels, 1 to {MOST_AXES} extents) and positions (batch, "
                f"..., a coordinate for each extent), got {x} and {places}"
            )
        if places.shape[0] != x.shape[0]:
            raise ShapeError(f"x and positions must have the same batch, got {x} and {places}")
        if max(x.shape[2:]) > COUNTED // 4:
            raise ShapeError(f"an axis must have at most {COUNTED // 4} elements, got {x}")
        return x.with_shape((*x.shape[:2], *places.shape[1:-1]))

    def types(self, node: Node) -> tuple[TensorType, TensorType]:
        """Return the types of the maps (x or its gradient) and of the points."""
        raise NotImplementedError

    def _work(self, node: Node) -> int:
        """Return the number of products of an element and a weight."""
        x, places = self.types(node)
        points = places.elements // places.shape[-1]
        return points * x.shape[1] * int(TAPS[node.attributes.form] ** (x.rank - 2))

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(2 * self._work(node), moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return scratch for a tile of points.

        It has rows of floats, of indices and of bools for the elements that the points read, and
        one row per channel.
        """
        x, places = self.types(node)
        axes, taps = x.rank - 2, TAPS[node.attributes.form]
        points = math.prod(places.shape[1:-1])
        reals = 2 * axes * taps + axes + 3
        ints, bools = axes * taps + 2, axes * taps + 1
        itemsize = max(4, x.dtype.itemsize)
        point = (reals + x.shape[1]) * itemsize + 8 * ints + bools
        tile = min(points, max(1, min(TILE_BYTES, device.workspace_limit_bytes) // point))
        return (
            x.with_shape((reals, tile)),
            TensorType((ints, tile), int64),
            TensorType((bools, tile), bool_),
            x.with_shape((x.shape[1], tile)),
        )

    def tiles(self, record: Recorder, node: Node, places: Array) -> interpolation.Tiles:
        """Return the tiles of the points `places`, with the node's scratch."""
        a, (x, _) = node.attributes, self.types(node)
        taps = interpolation.Taps(x.shape[2:], TAPS[a.form], a.outside)
        flat = places.reshape(places.shape[0], -1, places.shape[-1])
        return interpolation.Tiles(taps, flat, record.scratch)


class Interpolate(Interpolation):
    """y = x interpolated at each point."""

    name, inputs = "interpolate", ("x", "places")
    attributes = InterpolateAttributes
    needs_contiguous = ("x", "places")

    def infer(
        self, attributes: InterpolateAttributes, x: TensorType, places: TensorType
    ) -> TensorType:
        return self.sampled(x, places)

    def types(self, node: Node) -> tuple[TensorType, TensorType]:
        x, places = node.inputs
        return x.type, places.type

    def gradient_x(self, node: Node, dy: Value, places: Value) -> Value:
        return apply(
            InterpolateInputGradient, dy, places, attributes=_with_extents(node, node.inputs[0])
        ).output

    def gradient_places(self, node: Node, dy: Value, x: Value, places: Value) -> Value | None:
        if node.attributes.form == "nearest":
            return None
        return apply(InterpolatePlaceGradient, dy, x, places, attributes=node.attributes).output

    def kernel(self, record: Recorder, node: Node, x: Array, places: Array, *, y: Array) -> None:
        tiles = self.tiles(record, node, places)
        maps, results = _flat_maps(x), y.reshape(*y.shape[:2], -1)
        record(functools.partial(interpolation.gather, tiles, maps, results))


class InterpolateInputGradient(Interpolation):
    """dx = for each element, the weighted sum of the gradients dy of the points that read it."""

    name, inputs, outputs = "interpolate_input_gradient", ("dy", "places"), ("dx",)
    attributes = InterpolateGradientAttributes
    needs_contiguous = ("dy", "places")

    def infer(
        self, attributes: InterpolateGradientAttributes, dy: TensorType, places: TensorType
    ) -> TensorType:
        if dy.rank < 2:
            raise ShapeError(f"dy must be (batch, channels, ...), got {dy}")
        dx = dy.with_shape((*dy.shape[:2], *attributes.extents))
        wanted = self.sampled(dx, places)
        if wanted != dy:
            raise ShapeError(f"dy must be {wanted} for {dx} at the positions {places}, got {dy}")
        return dx

    def types(self, node: Node) -> tuple[TensorType, TensorType]:
        return node.output.type, node.inputs[1].type

    def gradient_dy(self, node: Node, ddx: Value, places: Value) -> Value:
        return apply(Interpolate, ddx, places, attributes=_plain(node)).output

    def gradient_places(self, node: Node, ddx: Value, dy: Value, places: Value) -> Value | None:
        if node.attributes.form == "nearest":
            return None
        return apply(InterpolatePlaceGradient, dy, ddx, places, attributes=_plain(node)).output

    def kernel(self, record: Recorder, node: Node, dy: Array, places: Array, *, dx: Array) -> None:
        tiles = self.tiles(record, node, places)
        gradients = dy.reshape(*dy.shape[:2], -1)
        record(functools.partial(interpolation.scatter, tiles, gradients, _flat_maps(dx)))


class InterpolatePlaceGradient(Interpolation):
    """dplaces = dy · the derivative of y with respect to each coordinate, summed over channels."""

    name, inputs = "interpolate_place_gradient", ("dy", "x", "places")
    outputs = ("dplaces",)
    attributes = InterpolateAttributes
    needs_contiguous = ("dy", "x", "places")

    def infer(
        self, attributes: InterpolateAttributes, dy: TensorType, x: TensorType, places: TensorType
    ) -> TensorType:
        wanted = self.sampled(x, places)
        if wanted != dy:
            raise ShapeError(f"dy must be {wanted} for {x} at the positions {places}, got {dy}")
        if attributes.form == "nearest":
            raise OptionError("nearest interpolation has no gradient with respect to positions")
        return places

    def types(self, node: Node) -> tuple[TensorType, TensorType]:
        _, x, places = node.inputs
        return x.type, places.type

    def gradient_dy(self, node: Node, ddplaces: Value, x: Value, places: Value) -> Value:
        found = list[Value]()
        for axis, near, far in _ends(node, places):
            slope = sub(_at(node, x, far), _at(node, x, near))
            found.append(mul(slope, _of_axis(ddplaces, axis)))
        return functools.reduce(add, found)

    def gradient_x(self, node: Node, ddplaces: Value, dy: Value, places: Value) -> Value:
        attributes, found = _with_extents(node, node.inputs[1]), list[Value]()
        for axis, near, far in _ends(node, places):
            back = mul(dy, _of_axis(ddplaces, axis))
            ends = (
                apply(InterpolateInputGradient, back, end, attributes=attributes).output
                for end in (far, near)
            )
            found.append(sub(*ends))
        return functools.reduce(add, found)

    def gradient_places(
        self, node: Node, ddplaces: Value, dy: Value, x: Value, places: Value
    ) -> Value:
        """Return the second derivative with respect to coordinates, for linear interpolation.

        It is 0 for the same axis twice, since the slope is constant between two elements.
        """
        found = list[Value]()
        for axis, near, far in _ends(node, places):
            back = mul(dy, _of_axis(ddplaces, axis))
            ends = (
                apply(InterpolatePlaceGradient, back, x, end, attributes=node.attributes).output
                for end in (far, near)
            )
            found.append(where(_is_axis(node, axis), 0.0, sub(*ends)))
        return functools.reduce(add, found)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, places: Array, *, dplaces: Array
    ) -> None:
        tiles = self.tiles(record, node, places)
        gradients, maps = dy.reshape(*dy.shape[:2], -1), _flat_maps(x)
        results = dplaces.reshape(dplaces.shape[0], -1, dplaces.shape[-1])
        record(functools.partial(interpolation.slopes, tiles, gradients, maps, results))


def _ends(node: Node, places: Value) -> Iterator[tuple[int, Value, Value]]:
    """Yield each axis, and the points moved along it to the element before and to the one after.

    The slope along the axis is the difference of the values of x at both. Raises `GradientError`
    unless interpolation is linear.
    """
    form, axes = node.attributes.form, node.inputs[1].type.rank - 2
    if form != "linear":
        raise GradientError(
            f"{node.label}: second derivatives with respect to positions exist only for the "
            f"form linear, got {form}; omit the positions from wrt, or interpolate linearly"
        )
    before = floor(places)
    for axis in range(axes):
        near = where(_is_axis(node, axis), before, places)
        far = where(_is_axis(node, axis), add(before, 1.0), places)
        yield axis, near, far


def _is_axis(node: Node, axis: int) -> Value:
    """Return a mask (axes,) that is true at the coordinate of one axis."""
    return constant(np.arange(node.inputs[1].type.rank - 2) == axis)


def _at(node: Node, x: Value, places: Value) -> Value:
    return apply(Interpolate, x, places, attributes=node.attributes).output


def _of_axis(places: Value, axis: int) -> Value:
    """Return one coordinate of all points as (batch, 1, *shape), to broadcast over channels."""
    found = slice_(places, (..., axis))
    return reshape(found, (found.shape[0], 1, *found.shape[1:]))


def _with_extents(node: Node, x: Value) -> InterpolateGradientAttributes:
    a = node.attributes
    return InterpolateGradientAttributes(x.shape[2:], a.form, a.outside)


def _plain(node: Node) -> InterpolateAttributes:
    return InterpolateAttributes(node.attributes.form, node.attributes.outside)


def _flat_maps(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1)


# --- function ---

PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    x: Value,
    grid: Value,
    form: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Value:
    """Sample x (batch, channels, *extents) at the points of a grid (batch, *shape, axes).

    x has 1 to 3 extents, and the result is (batch, channels, *shape). A point has a coordinate from
    -1 to 1 for each axis, the last axis first. With `align_corners`, -1 and 1 are the centers of
    the outermost elements, else their outer edges.

    The `form` is "nearest" (halves are rounded to the even element), "linear" or "cubic", with the
    coefficient -0.75. `padding` determines elements beyond x: "zeros", "border" (the nearest
    element) or "reflection", as in PyTorch. x and the grid get gradients, except for the grid with
    "nearest". Second derivatives with respect to the grid need "linear". Raises `ShapeError`,
    `OptionError` and `DTypeError` for invalid arguments.
    """
    choose("grid_sample: form", form, FORMS)
    choose("grid_sample: padding", padding, PADDINGS)
    align_corners = truth("grid_sample: align_corners", align_corners)
    float_dtype(as_value("grid_sample", x).type, as_value("grid_sample", grid).type)
    axes = x.type.rank - 2
    if not 1 <= axes <= MOST_AXES or grid.shape[-1:] != (axes,):
        raise ShapeError(
            f"grid_sample: x must be (batch, channels, 1 to {MOST_AXES} extents) and the grid "
            f"(batch, ..., a coordinate for each extent), got {x.type} and {grid.type}"
        )
    extents = np.array(x.shape[:1:-1], x.type.dtype.numpy)
    factors = (extents - 1 if align_corners else extents) / 2
    places = add(mul(grid, _numbers(factors)), _numbers((extents - 1) / 2))
    outside = {"zeros": "zeros", "border": "edge"}.get(
        padding, "reflect" if align_corners else "symmetric"
    )
    if padding != "zeros" and form != "cubic":
        if padding == "reflection":
            places = _reflected(places, extents, align_corners)
        places = minimum(maximum(places, 0.0), _numbers(extents - 1))
        outside = "edge"
    attributes = InterpolateAttributes(form, outside)
    return apply(Interpolate, x, places, attributes=attributes).output


def _numbers(given: Any) -> Value:
    return constant(given)


def _reflected(places: Value, extents: Any, align_corners: bool) -> Value:
    """Reflect coordinates at the outermost centers (`align_corners`) or at the outer edges."""
    low = 0.0 if align_corners else -0.5
    span = np.maximum(extents - 1, 1) if align_corners else extents
    away = sub(places, low) if low else places
    turns = floor(mul(away, _numbers(1 / (2 * span))))
    within = sub(away, mul(turns, _numbers(2 * span)))
    folded = sub(_numbers(span), abs(sub(within, _numbers(span))))
    return add(folded, low) if low else folded
