"""Gradients of norms, as ops that are differentiable themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, ShapeError
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import REGISTRY, Array, Cost, Op, Recorder
from graphc.ir.types import DType, TensorType, compute_dtype
from graphc.ops.choice import cast
from graphc.ops.cpu.norm import folded_statistic, normalise_back, scale_back, tile_shape
from graphc.ops.elementwise import add, float_dtype, mul, neg, sub
from graphc.ops.elementwise import scale as scale_by
from graphc.ops.frame import Frame
from graphc.ops.reduce import mean as mean_over
from graphc.ops.reduce import sum_to
from graphc.ops.shape import broadcast_to, full, reshape


def check_dtypes(x: TensorType, *others: TensorType) -> DType:
    """Return the dtype of x's statistics.

    Raises `DTypeError` unless `others` have it or x's dtype.
    """
    wide = compute_dtype(float_dtype(x))
    for type in others:
        if type.dtype not in (x.dtype, wide):
            raise DTypeError(
                f"parameters and statistics for x of {x.dtype} must be {wide}, got {type.dtype}; "
                "convert one with graphc.cast"
            )
    return wide


@dataclass(frozen=True, slots=True)
class NormGradientAttributes:
    """The fields of a norm's `Frame`, as attributes of its gradient ops."""

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def frame(self) -> Frame:
        return Frame(self.shape, self.statistic_axes, self.parameter_axes)

    def check(self, dy: TensorType, x: TensorType, statistics: Sequence[TensorType]) -> Frame:
        """Return the frame.

        Raises an error unless it fits x, and dy and the statistics fit the frame.
        """
        float_dtype(dy, x)
        if dy.shape != x.shape or not self.frame().suits(x.shape):
            raise ShapeError(
                f"dy must have the type of x, and {self.frame()} must be the frame of a norm over "
                f"{x}, got dy of {dy}"
            )
        length = math.prod(self.frame().statistic_shape)
        if any(statistic.shape != (length,) for statistic in statistics):
            raise ShapeError(f"statistics must have the shape ({length},), got {statistics}")
        check_dtypes(x, *statistics)
        return self.frame()


class NormGradient(Op):
    """Base: operands that the frame does not reshape may have any stride along the batch axis."""

    attributes = NormGradientAttributes

    def free_axes(self, node: Node, name: str) -> int:
        is_folded = node.attributes.shape != node.inputs[0].shape
        if name in ("dy", "x", "dx"):
            return 0 if is_folded else 1
        return super().free_axes(node, name)

    def folded(self, node: Node, value: Value) -> Value:
        """Reshape a value shaped like x to the frame, and cast it to the statistics' dtype."""
        wide = compute_dtype(value.type.dtype)
        return reshape(cast(value, wide), node.attributes.shape)

    def statistic(self, node: Node, value: Value) -> Value:
        """Reshape a statistic so that it broadcasts over the folded shape of the frame."""
        return reshape(value, node.attributes.frame().statistic_shape)

    def parameter(self, node: Node, value: Value) -> Value:
        """Cast a parameter to the statistics' dtype, and reshape it to broadcast over the frame."""
        wide = compute_dtype(value.type.dtype)
        return reshape(cast(value, wide), node.attributes.frame().parameter_shape)

    def unit(self, node: Node, x: Value, mean: Value, inverse: Value) -> Value:
        """Return the normalized x, in the frame's shape."""
        centred = sub(self.folded(node, x), self.statistic(node, mean))
        return mul(centred, self.statistic(node, inverse))

    def like(self, node: Node, values: Value, name: str) -> Value:
        """Return `values` in the shape and dtype of the input called `name`.

        `values` broadcast over the frame. They are summed over axes that the input does not have.
        """
        target, frame = node.named_inputs()[name], node.attributes.frame()
        assert isinstance(target, Value)
        if name in ("mean", "inverse"):
            values = sum_to(values, frame.statistic_shape)
        elif name == "scale":
            values = sum_to(values, frame.parameter_shape)
        else:
            values = broadcast_to(values, frame.shape)
        return cast(reshape(values, target.shape), target.type.dtype)


class NormInputGradient(NormGradient):
    """dx = inverse · (g - mean(g) - x̂ · mean(g · x̂)), g = dy · scale, x̂ the normalized x."""

    name, inputs = "norm_input_gradient", ("dy", "x", "mean", "inverse", "scale")
    outputs = ("dx",)
    may_overwrite = {"dx": ("x", "dy")}
    flops_per_element = 11

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        dy, x, mean, inverse, scale = types
        frame = attributes.check(dy, x, (mean, inverse))
        check_dtypes(x, scale)
        if scale.shape != (math.prod(frame.parameter_shape),):
            raise ShapeError(f"scale must have one number per parameter of {frame}, got {scale}")
        return dy

    def gradient_dy(
        self, node: Node, ddx: Value, x: Value, mean: Value, inverse: Value, scale: Value
    ) -> Value:
        """Return the gradient with respect to dy: dx is a symmetric linear map of dy · scale."""
        mapped = self._unscaled(node, ddx, x, mean, inverse)
        return self.like(node, mul(mapped, self.parameter(node, scale)), "dy")

    def gradient_scale(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value
    ) -> Value:
        mapped = self._unscaled(node, ddx, x, mean, inverse)
        return self.like(node, mul(mapped, self.folded(node, dy)), "scale")

    def gradient_x(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value,
        scale: Value,
    ) -> Value:  # fmt: skip
        return self.like(node, self._by_place(node, ddx, dy, x, mean, inverse, scale), "x")

    def gradient_mean(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value,
        scale: Value,
    ) -> Value:  # fmt: skip
        slopes = self._by_place(node, ddx, dy, x, mean, inverse, scale)
        return self.like(node, neg(slopes), "mean")

    def gradient_inverse(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value,
        scale: Value,
    ) -> Value:  # fmt: skip
        """Return n · (mean(r · g) - mean(r) · mean(g) - 3 · mean(r · x̂) · mean(g · x̂)).

        Here r is ddx, g is dy · scale, x̂ is the normalized x, and n is the number of elements per
        statistic.
        """
        r, g, unit = self._factors(node, ddx, dy, x, mean, inverse, scale)
        rg, ru, gu = (self._mean(node, mul(*pair)) for pair in ((r, g), (r, unit), (g, unit)))
        plain = sub(rg, mul(self._mean(node, r), self._mean(node, g)))
        each = sub(plain, scale_by(mul(ru, gu), 3.0))
        return self.like(node, scale_by(each, node.attributes.frame().count), "inverse")

    def _unscaled(self, node: Node, ddx: Value, x: Value, mean: Value, inverse: Value) -> Value:
        """Return the map from dy to dx at scale 1, which is symmetric, applied to ddx.

        The result has the frame's shape.
        """
        one = full(node.inputs[4].shape, 1.0, inverse.type.dtype)
        operands = (ddx, x, mean, inverse, one)
        mapped = apply(NormInputGradient, *operands, attributes=node.attributes).output
        return self.folded(node, mapped)

    def _by_place(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value,
        scale: Value,
    ) -> Value:  # fmt: skip
        """Return -inverse² · (r · mean(g · x̂) + g · mean(r · x̂)).

        This is the gradient with respect to x if statistics are constant. r is ddx, g is
        dy · scale, and x̂ is the normalized x.
        """
        r, g, unit = self._factors(node, ddx, dy, x, mean, inverse, scale)
        v = self.statistic(node, inverse)
        along = [self._mean(node, mul(part, unit)) for part in (g, r)]
        return neg(mul(mul(v, v), add(mul(r, along[0]), mul(g, along[1]))))

    def _factors(
        self, node: Node, ddx: Value, dy: Value, x: Value, mean: Value, inverse: Value,
        scale: Value,
    ) -> tuple[Value, Value, Value]:  # fmt: skip
        """Return r = ddx, g = dy · scale and x̂, the normalized x, all in the frame's shape."""
        g = mul(self.folded(node, dy), self.parameter(node, scale))
        return self.folded(node, ddx), g, self.unit(node, x, mean, inverse)

    def _mean(self, node: Node, values: Value) -> Value:
        return mean_over(values, node.attributes.statistic_axes, keepdims=True)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: two tiles, and two numbers per statistic."""
        frame, dy = node.attributes.frame(), node.inputs[0].type
        tile = dy.with_shape(tile_shape(frame, across=False))
        statistic = dy.with_shape(frame.statistic_shape)
        return tile, tile, statistic, statistic

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        scale: Array, *, dx: Array,
    ) -> None:  # fmt: skip
        _record_dx(record, node, (dy, x, dx), (mean, inverse), scale, record.scratch)


class NormParameterGradient(NormGradient):
    """Base: sums over all axes except those of the parameters."""

    flops_per_element = 1

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        dy, x, *statistics = types if len(types) > 1 else types * 2
        frame = attributes.check(dy, x, statistics)
        return TensorType((math.prod(frame.parameter_shape),), check_dtypes(dy))


class NormBiasGradient(NormParameterGradient):
    """dbias = the sum of dy."""

    name, inputs, outputs = "norm_bias_gradient", ("dy",), ("dbias",)

    def gradient(self, node: Node, ddbias: Value) -> Value:
        return self.like(node, self.parameter(node, ddbias), "dy")

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dbias: Array) -> None:
        _record_dbias(record, node, dy, dbias)


class NormScaleGradient(NormParameterGradient):
    """dscale = the sum of dy · x̂, where x̂ is the normalized x."""

    name, inputs = "norm_scale_gradient", ("dy", "x", "mean", "inverse")
    outputs = ("dscale",)

    def gradient_dy(
        self, node: Node, ddscale: Value, x: Value, mean: Value, inverse: Value
    ) -> Value:
        unit = self.unit(node, x, mean, inverse)
        return self.like(node, mul(unit, self.parameter(node, ddscale)), "dy")

    def gradient_x(self, node: Node, ddscale: Value, dy: Value, inverse: Value) -> Value:
        return self.like(node, self._by_place(node, ddscale, dy, inverse), "x")

    def gradient_mean(self, node: Node, ddscale: Value, dy: Value, inverse: Value) -> Value:
        return self.like(node, neg(self._by_place(node, ddscale, dy, inverse)), "mean")

    def gradient_inverse(
        self, node: Node, ddscale: Value, dy: Value, x: Value, mean: Value
    ) -> Value:
        centred = sub(self.folded(node, x), self.statistic(node, mean))
        product = mul(self.folded(node, dy), self.parameter(node, ddscale))
        return self.like(node, mul(product, centred), "inverse")

    def _by_place(self, node: Node, ddscale: Value, dy: Value, inverse: Value) -> Value:
        """Return the gradient with respect to x for constant statistics, in the frame's shape."""
        product = mul(self.folded(node, dy), self.parameter(node, ddscale))
        return mul(product, self.statistic(node, inverse))

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a tile of products, and their sum."""
        frame, dy = node.attributes.frame(), node.inputs[0].type
        return dy.with_shape(tile_shape(frame, across=True)), dy.with_shape(frame.parameter_shape)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        *, dscale: Array,
    ) -> None:  # fmt: skip
        _record_dscale(record, node, (dy, x), (mean, inverse), dscale, record.scratch)


class NormParameterGradients(NormGradient):
    """dscale and dbias at once, for targets whose kernels sum both in one pass.

    A pass replaces the ops for dscale and dbias by this one after differentiation, so it has no
    gradient.
    """

    name, inputs = "norm_parameter_gradients", ("dy", "x", "mean", "inverse")
    outputs = ("dscale", "dbias")
    flops_per_element = 4

    def infer(
        self, attributes: NormGradientAttributes, *types: TensorType
    ) -> tuple[TensorType, ...]:
        dscale = REGISTRY["norm_scale_gradient"].infer_types(attributes, types)
        return (*dscale, *REGISTRY["norm_bias_gradient"].infer_types(attributes, types[:1]))

    def cost(self, node: Node) -> Cost:
        read = sum(value.type.bytes for value in node.inputs)
        written = sum(value.type.bytes for value in node.outputs)
        return Cost(self.flops_per_element * node.inputs[0].type.elements, read, written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return REGISTRY["norm_scale_gradient"].scratch(node, device)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        *, dscale: Array, dbias: Array,
    ) -> None:  # fmt: skip
        _record_dscale(record, node, (dy, x), (mean, inverse), dscale, record.scratch)
        _record_dbias(record, node, dy, dbias)


class NormGradients(NormGradient):
    """dx, dscale and dbias in one op, if each statistic has one scale and bias, as in batch norm.

    The sums needed by dx are then scale · dbias and scale · dscale.
    """

    name, inputs = "norm_gradients", ("dy", "x", "mean", "inverse", "scale")
    outputs = ("dx", "dscale", "dbias")
    may_overwrite = {"dx": ("x", "dy")}
    flops_per_element = 11

    def infer(
        self, attributes: NormGradientAttributes, *types: TensorType
    ) -> tuple[TensorType, ...]:
        if not attributes.frame().has_one_parameter:
            raise ShapeError(f"a statistic must have one parameter, got {attributes.frame()}")
        (dx,) = REGISTRY["norm_input_gradient"].infer_types(attributes, types)
        return (dx, *REGISTRY["norm_parameter_gradients"].infer_types(attributes, types[:4]))

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of dx, followed by those of the sums."""
        return (
            *REGISTRY["norm_input_gradient"].scratch(node, device),
            *REGISTRY["norm_scale_gradient"].scratch(node, device),
        )

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        scale: Array, *, dx: Array, dscale: Array, dbias: Array,
    ) -> None:  # fmt: skip
        """Record the sums before dx, since dx may overwrite their operands."""
        *workspace, tile, share = record.scratch
        _record_dscale(record, node, (dy, x), (mean, inverse), dscale, (tile, share))
        _record_dbias(record, node, dy, dbias)
        _record_dx(record, node, (dy, x, dx), (mean, inverse), scale, workspace)


def _folded(
    frame: Frame, arrays: Sequence[Array], statistics: Sequence[Array]
) -> tuple[Array, ...]:
    """Reshape arrays to the frame, and statistics to broadcast over it."""
    over = (folded_statistic(frame, array) for array in statistics)
    return (*(array.reshape(frame.shape) for array in arrays), *over)


def _record_dx(
    record: Recorder, node: Node, arrays: Sequence[Array], statistics: Sequence[Array],
    scale: Array, scratch: Sequence[Array],
) -> None:  # fmt: skip
    frame = node.attributes.frame()
    weights = scale.reshape(frame.parameter_shape)
    record(normalise_back, frame, *_folded(frame, arrays, statistics), weights, *scratch)


def _record_dscale(
    record: Recorder, node: Node, arrays: Sequence[Array], statistics: Sequence[Array],
    dscale: Array, scratch: Sequence[Array],
) -> None:  # fmt: skip
    frame = node.attributes.frame()
    folded = _folded(frame, arrays, statistics)
    total = dscale.reshape(frame.parameter_shape)
    record(scale_back, frame, frame.summed_axes, *folded, total, *scratch)


def _record_dbias(record: Recorder, node: Node, dy: Array, dbias: Array) -> None:
    frame = node.attributes.frame()
    total = dbias.reshape(frame.parameter_shape)
    record(np.add.reduce, dy.reshape(frame.shape), frame.summed_axes, out=total, keepdims=True)
