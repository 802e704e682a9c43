"""Root mean square normalization."""

from __future__ import annotations

import functools

from graphc.devices.device import Device
from graphc.errors import ShapeError
from graphc.ir.builder import apply, as_value, layer_scope, parameter
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType
from graphc.ops.choice import cast
from graphc.ops.cpu.norm import root_mean_square
from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.elementwise import scale as scale_by
from graphc.ops.norm import EpsilonAttributes, checked_epsilon, extent_of
from graphc.ops.norm_gradient import check_dtypes
from graphc.ops.reduce import mean, sum_to
from graphc.ops.weights import frozen_alone


class RmsNorm(Op):
    """y = x · scale / root mean square over the last axis (Zhang and Sennrich, 2019)."""

    name, inputs, outputs = "rms_norm", ("x", "scale"), ("y", "inverse")
    attributes = EpsilonAttributes
    independent = {"inverse": ("scale",)}
    needs_contiguous = ("x",)
    flops_per_element = 5
    wide_inputs = ("scale",)
    any_strides = True

    def infer(
        self, attributes: EpsilonAttributes, x: TensorType, scale: TensorType
    ) -> tuple[TensorType, TensorType]:
        wide = check_dtypes(x, scale)
        if x.rank < 1 or scale.shape != x.shape[-1:]:
            raise ShapeError(
                f"scale must have one number per element of the last axis, got {scale} for x of {x}"
            )
        return x, TensorType((*x.shape[:-1], 1), wide)

    def gradient_x(
        self, node: Node, dy: Value | None, dinverse: Value | None, x: Value, inverse: Value,
        scale: Value,
    ) -> Value:  # fmt: skip
        """Return the gradient through y and `inverse`, computed in float32 for 16-bit floats."""
        dtype, wide = x.type.dtype, inverse.type.dtype
        x, parts = cast(x, wide), []
        if dy is not None:
            parts.append(_through_y(cast(dy, wide), x, inverse, cast(scale, wide)))
        if dinverse is not None:
            cube = mul(inverse, mul(inverse, inverse))
            parts.append(mul(x, scale_by(mul(dinverse, cube), -1 / x.shape[-1])))
        return cast(functools.reduce(add, parts), dtype)

    def gradient_scale(
        self, node: Node, dy: Value | None, x: Value, inverse: Value
    ) -> Value | None:
        if dy is None:
            return None
        wide, scale = inverse.type.dtype, node.inputs[1]
        product = mul(cast(dy, wide), mul(cast(x, wide), inverse))
        return cast(sum_to(product, scale.shape), scale.type.dtype)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch type: a tile of squares."""
        x = node.inputs[0].type
        rows = max(1, TILE_ELEMENTS // x.shape[-1])
        return (x.with_shape((min(rows, x.elements // x.shape[-1]), x.shape[-1])),)

    def kernel(
        self, record: Recorder, node: Node, x: Array, scale: Array, *, y: Array, inverse: Array
    ) -> None:
        (tile,) = record.scratch
        rows = (-1, x.shape[-1])
        arrays = x.reshape(rows), y.reshape(rows), inverse.reshape(-1, 1)
        record(root_mean_square, node.attributes.epsilon, *arrays, scale, tile)


def _through_y(dy: Value, x: Value, inverse: Value, scale: Value) -> Value:
    """Return dx through y: inverse · (g - x · inverse² · mean(g · x)) with g = dy · scale."""
    g = mul(dy, scale)
    along = mean(mul(g, x), -1, keepdims=True)
    return mul(inverse, sub(g, mul(x, mul(mul(inverse, inverse), along))))


def rms_norm(
    x: Value,
    epsilon: float = 1e-6,
    trainable: bool = True,
    name: str | None = None,
    scale: Value | None = None,
) -> Value:
    """Return x / √(mean(x²) + epsilon) over the last axis, scaled (Zhang and Sennrich, 2019).

    Keeps the shape of float x. Creates ``scale`` (ones), with the extent of the axis, under scope
    `name` or ``norm``, unless it is given. Raises `OptionError` unless 0 < `epsilon` < 1.
    """
    with layer_scope("norm", name, "norm"):
        one, length = Initial("constant", 1.0), extent_of("rms_norm", x, -1)
        if scale is None:
            scale = parameter("scale", (length,), x.type.dtype, one, trainable)
        frozen_alone("rms_norm", as_value("rms_norm: scale", scale), trainable)
        attributes = EpsilonAttributes(checked_epsilon("rms_norm", epsilon))
        return apply(RmsNorm, x, scale, attributes=attributes).outputs[0]
