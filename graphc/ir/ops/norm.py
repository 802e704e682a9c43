"""Normalisation: batch, layer, group and root mean square. The arithmetic is in statistics.py.

The gradients read x and the saved statistics, which are float32 for an x of 16 bits; parameters and
their gradients may be, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.ir.builder import apply, parameter, scope, scoped_name, state
from graphc.ir.device import Device
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.numpy_expression import TILE_ELEMENTS, compute_dtype
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.ops.choice import cast
from graphc.ir.ops.elementwise import (
    Elementwise,
    add,
    div,
    float_dtype,
    mul,
    neg,
    power,
    shift,
    sqrt,
    sub,
)
from graphc.ir.ops.elementwise import scale as scale_by
from graphc.ir.ops.reduce import mean, sum_to
from graphc.ir.ops.shape import reshape
from graphc.ir.ops.statistics import (
    Frame,
    folded_statistic,
    normalise,
    normalise_back,
    root_mean_square,
    scale_back,
)
from graphc.ir.ops.update import Update
from graphc.ir.types import DType, TensorType, broadcast_shapes


def _check_dtypes(x: TensorType, *others: TensorType) -> DType:
    """The dtype of x's statistics; raises `DTypeError` unless the others have it, or x's own."""
    wide = compute_dtype(float_dtype(x))
    for type in others:
        if type.dtype not in (x.dtype, wide):
            raise DTypeError(
                f"beside x of {x.dtype}, parameters and statistics are {wide}, got {type.dtype}; "
                "convert one with graphc.cast"
            )
    return wide


class Norm(Op):
    """Base of the forward ops."""

    outputs = ("y", "mean", "inverse")
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    flops_per_element = 8
    wide_inputs = ("scale", "bias", "running_mean", "running_variance")

    def frame(self, node: Node) -> Frame:
        """How this node looks at its x."""
        return self.frame_of(node.attributes, node.inputs[0].shape)

    def frame_of(self, attributes: Any, shape: tuple[int, ...]) -> Frame:
        """The same from attributes and a shape; raises `ShapeError` where they do not fit."""
        raise NotImplementedError

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        """y like x; one mean and one inverse deviation a statistic, flat."""
        x, *parameters = types
        wide = _check_dtypes(x, *parameters)
        frame = self.frame_of(attributes, x.shape)
        length = math.prod(frame.parameter_shape)
        if any(p.shape != (length,) for p in parameters):
            raise ShapeError(f"scale and bias must have the shape ({length},), got {parameters}")
        statistic = TensorType((math.prod(frame.statistic_shape),), wide)
        return x, statistic, statistic

    def gradient_x(
        self, node: Node, dy: Value, x: Value, mean: Value, inverse: Value, scale: Value
    ) -> Value:
        operands = (dy, x, mean, inverse, scale)
        return apply(NormInputGradient, *operands, attributes=self._attributes(node)).output

    def gradient_scale(self, node: Node, dy: Value, x: Value, mean: Value, inverse: Value) -> Value:
        attributes = self._attributes(node)
        dscale = apply(NormScaleGradient, dy, x, mean, inverse, attributes=attributes).output
        return cast(dscale, node.inputs[1].type.dtype)

    def gradient_bias(self, node: Node, dy: Value) -> Value:
        dbias = apply(NormBiasGradient, dy, attributes=self._attributes(node)).output
        return cast(dbias, node.inputs[2].type.dtype)

    def _attributes(self, node: Node) -> NormGradientAttributes:
        frame = self.frame(node)
        return NormGradientAttributes(frame.shape, frame.statistic_axes, frame.parameter_axes)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """A tile of squares, and a correction a statistic."""
        frame, x = self.frame(node), node.inputs[0].type
        statistic = x.with_shape(frame.statistic_shape)
        return x.with_shape(frame.tile(across=False)[1]), statistic

    def kernel(self, record: Recorder, node: Node, *inputs: Array, **outputs: Array) -> None:
        x, scale, bias = inputs[:3]
        frame, epsilon = self.frame(node), node.attributes.epsilon
        arrays = (x.reshape(frame.shape), outputs["y"].reshape(frame.shape))
        statistics = (
            folded_statistic(frame, outputs["mean"]),
            folded_statistic(frame, outputs["inverse"]),
        )
        parameters = (scale.reshape(frame.parameter_shape), bias.reshape(frame.parameter_shape))
        call = functools.partial(normalise, frame, epsilon, *arrays, *statistics, *parameters)
        record(call, *record.scratch)


@dataclass(frozen=True, slots=True)
class NormGradientAttributes:
    """A `Frame`."""

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def frame(self) -> Frame:
        return Frame(self.shape, self.statistic_axes, self.parameter_axes)


class NormInputGradient(Op):
    """dx = inverse · (g - mean g - x̂ · mean(g · x̂)), g = dy · scale, x̂ = (x - mean) · inverse."""

    name, inputs = "norm_input_gradient", ("dy", "x", "mean", "inverse", "scale")
    outputs = ("dx",)
    attributes = NormGradientAttributes
    may_overwrite = {"dx": ("x", "dy")}
    needs_contiguous = ("dy", "x")
    flops_per_element = 11

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        dy, x, *others = types
        float_dtype(dy, x)
        _check_dtypes(x, *others)
        return dy

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Two tiles, and two numbers a statistic."""
        frame, dy = node.attributes.frame(), node.inputs[0].type
        tile = dy.with_shape(frame.tile(across=False)[1])
        statistic = dy.with_shape(frame.statistic_shape)
        return tile, tile, statistic, statistic

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        scale: Array, *, dx: Array,
    ) -> None:  # fmt: skip
        frame = node.attributes.frame()
        arrays = [array.reshape(frame.shape) for array in (dy, x, dx)]
        statistics = [folded_statistic(frame, array) for array in (mean, inverse)]
        weights = scale.reshape(frame.parameter_shape)
        record(normalise_back, frame, *arrays, *statistics, weights, *record.scratch)


class NormParameterGradient(Op):
    """Base: sums over all axes but the parameters'."""

    attributes = NormGradientAttributes
    needs_contiguous = ("dy", "x")
    flops_per_element = 1

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        wide = _check_dtypes(types[0], *types[2:])
        return TensorType((math.prod(attributes.frame().parameter_shape),), wide)

    def summed_axes(self, frame: Frame) -> tuple[int, ...]:
        return tuple(i for i in range(len(frame.shape)) if i not in frame.parameter_axes)


class NormBiasGradient(NormParameterGradient):
    """dbias = sum of dy."""

    name, inputs, outputs = "norm_bias_gradient", ("dy",), ("dbias",)

    def kernel(self, record: Recorder, node: Node, dy: Array, *, dbias: Array) -> None:
        frame = node.attributes.frame()
        total = dbias.reshape(frame.parameter_shape)
        folded = dy.reshape(frame.shape)
        record(np.add.reduce, folded, self.summed_axes(frame), out=total, keepdims=True)


class NormScaleGradient(NormParameterGradient):
    """dscale = sum of dy · x̂."""

    name, inputs = "norm_scale_gradient", ("dy", "x", "mean", "inverse")
    outputs = ("dscale",)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """A tile of products, and their sum."""
        frame, dy = node.attributes.frame(), node.inputs[0].type
        return dy.with_shape(frame.tile(across=True)[1]), dy.with_shape(frame.parameter_shape)

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, mean: Array, inverse: Array,
        *, dscale: Array,
    ) -> None:  # fmt: skip
        frame = node.attributes.frame()
        arrays = [array.reshape(frame.shape) for array in (dy, x)]
        statistics = [folded_statistic(frame, array) for array in (mean, inverse)]
        total = dscale.reshape(frame.parameter_shape)
        call = functools.partial(scale_back, frame, self.summed_axes(frame), *arrays, *statistics)
        record(call, total, *record.scratch)


# --- batch norm ---


@dataclass(frozen=True, slots=True)
class BatchNormAttributes:
    """The guard in the root, and the weight of a step in the running statistics."""

    epsilon: float
    momentum: float


class BatchNorm(Norm):
    """Over the batch and all positions, a channel at a time (Ioffe and Szegedy, 2015).

    The running statistics are inputs only to belong to the node: a training step updates them, and
    outside training they take the place of the batch's own.
    """

    name = "batch_norm"
    inputs = ("x", "scale", "bias", "running_mean", "running_variance")
    attributes = BatchNormAttributes

    def frame_of(self, attributes: BatchNormAttributes, shape: tuple[int, ...]) -> Frame:
        if len(shape) < 2:
            raise ShapeError(f"x is (batch, channels, ...), got {list(shape)}")
        others = tuple(i for i in range(len(shape)) if i != 1)
        return Frame(shape, others, (1,))

    def effects(self, copies: Sequence[Node]) -> tuple[Node, ...]:
        """Running statistics move once a step, towards the average of the micro-batches'."""
        node = copies[0]
        *_, running_mean, running_variance = node.inputs
        means, inverses = ([copy.outputs[i] for copy in copies] for i in (1, 2))
        inverse = inverses[0]
        if len(copies) > 1:  # of the average variance
            inverse = power(_average([power(value, -2.0) for value in inverses]), -0.5)
        momentum, count = node.attributes.momentum, self.frame(node).count
        unbiased = count / max(count - 1, 1)
        variance = RunningVarianceAttributes(momentum, node.attributes.epsilon, unbiased)
        weight = RunningMeanAttributes(momentum)
        return (
            apply(RunningMeanUpdate, running_mean, _average(means), attributes=weight),
            apply(RunningVarianceUpdate, running_variance, inverse, attributes=variance),
        )

    def inference(self, node: Node) -> Value:
        x, scale, bias, mean, variance = node.inputs
        shape = self.frame(node).parameter_shape
        deviation = sqrt(shift(variance, node.attributes.epsilon))
        factor = div(cast(scale, variance.type.dtype), deviation)
        operands = (x, *(reshape(value, shape) for value in (mean, factor, bias)))
        return apply(BatchNormInference, *operands).output


def _average(values: Sequence[Value]) -> Value:
    total = functools.reduce(add, values)
    return scale_by(total, 1 / len(values)) if len(values) > 1 else total


class BatchNormInference(Elementwise):
    """y = (x - mean) · factor + bias, with statistics that are given."""

    name, inputs = "batch_norm_inference", ("x", "mean", "factor", "bias")
    expression = "(x - mean) * factor + bias"
    may_overwrite = {"y": ("x",)}
    wide_inputs = ("mean", "factor", "bias")

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        x, *others = types
        _check_dtypes(x, *others)
        shape = broadcast_shapes(self.name, *(type.shape for type in types))
        if shape != x.shape:
            raise ShapeError(f"statistics are broadcast to x, got {', '.join(map(str, types))}")
        return x

    def gradient_x(self, node: Node, dy: Value, factor: Value) -> Value:
        return cast(mul(cast(dy, factor.type.dtype), factor), dy.type.dtype)

    def gradient_mean(self, node: Node, dy: Value, factor: Value) -> Value:
        slope = neg(mul(cast(dy, factor.type.dtype), factor))
        return cast(sum_to(slope, node.inputs[1].shape), node.inputs[1].type.dtype)

    def gradient_factor(self, node: Node, dy: Value, x: Value, mean: Value) -> Value:
        dtype = node.inputs[2].type.dtype
        slope = mul(cast(dy, dtype), sub(cast(x, dtype), cast(mean, dtype)))
        return sum_to(slope, node.inputs[2].shape)

    def gradient_bias(self, node: Node, dy: Value) -> Value:
        bias = node.inputs[3].type
        return sum_to(cast(dy, bias.dtype), bias.shape)


@dataclass(frozen=True, slots=True)
class RunningMeanAttributes:
    """The weight of a step."""

    momentum: float


class RunningMeanUpdate(Update):
    """running ← (1 - momentum) · running + momentum · mean."""

    name, inputs, outputs = "running_mean_update", ("running", "mean"), ("running_new",)
    attributes = RunningMeanAttributes
    must_overwrite = {"running_new": "running"}
    expressions = {"running_new": "(1 - momentum) * running + momentum * mean"}


@dataclass(frozen=True, slots=True)
class RunningVarianceAttributes:
    """The weight of a step, the norm's guard, and n / (n - 1)."""

    momentum: float
    epsilon: float
    unbiased: float


class RunningVarianceUpdate(Update):
    """running ← (1 - momentum) · running + momentum · unbiased variance."""

    name, inputs = "running_variance_update", ("running", "inverse")
    outputs = ("running_new",)
    attributes = RunningVarianceAttributes
    must_overwrite = {"running_new": "running"}
    expressions = {
        "running_new": "(1 - momentum) * running"
        " + momentum * unbiased * (1 / (inverse * inverse) - epsilon)"
    }


# --- layer, group and root mean square norm ---


@dataclass(frozen=True, slots=True)
class EpsilonAttributes:
    """The guard in the root."""

    epsilon: float


class LayerNorm(Norm):
    """Over the last axis (Ba, Kiros and Hinton, 2016)."""

    name, inputs = "layer_norm", ("x", "scale", "bias")
    attributes = EpsilonAttributes

    def frame_of(self, attributes: EpsilonAttributes, shape: tuple[int, ...]) -> Frame:
        if not shape:
            raise ShapeError("x has no axis to normalise over")
        folded = (math.prod(shape[:-1]), shape[-1])
        return Frame(folded, (1,), (1,))


@dataclass(frozen=True, slots=True)
class GroupNormAttributes:
    """Groups of channels, and the guard in the root."""

    groups: int
    epsilon: float


class GroupNorm(Norm):
    """Over a group of channels and all positions of one example (Wu and He, 2018)."""

    name, inputs = "group_norm", ("x", "scale", "bias")
    attributes = GroupNormAttributes

    def frame_of(self, attributes: GroupNormAttributes, shape: tuple[int, ...]) -> Frame:
        groups = attributes.groups
        if len(shape) < 2 or shape[1] % groups:
            raise ShapeError(
                f"x is (batch, channels, ...) with channels in {groups} groups, got {list(shape)}"
            )
        folded = (shape[0], groups, shape[1] // groups, math.prod(shape[2:]))
        return Frame(folded, (2, 3), (1, 2))


class RmsNorm(Op):
    """y = x · scale / root mean square over the last axis (Zhang and Sennrich, 2019)."""

    name, inputs, outputs = "rms_norm", ("x", "scale"), ("y", "inverse")
    attributes = EpsilonAttributes
    needs_contiguous = ("x",)
    flops_per_element = 5
    wide_inputs = ("scale",)

    def infer(
        self, attributes: EpsilonAttributes, x: TensorType, scale: TensorType
    ) -> tuple[TensorType, TensorType]:
        wide = _check_dtypes(x, scale)
        if x.rank < 1 or scale.shape != x.shape[-1:]:
            raise ShapeError(f"scale has one number an element of the last axis, got {x}, {scale}")
        return x, TensorType((*x.shape[:-1], 1), wide)

    def gradient_x(self, node: Node, dy: Value, x: Value, inverse: Value, scale: Value) -> Value:
        """inverse · (g - x · inverse² · mean(g · x)) with g = dy · scale, in the wide dtype."""
        dtype, wide = x.type.dtype, inverse.type.dtype
        dy, x, scale = cast(dy, wide), cast(x, wide), cast(scale, wide)
        g = mul(dy, scale)
        along = mean(mul(g, x), -1, keepdims=True)
        return cast(mul(inverse, sub(g, mul(x, mul(mul(inverse, inverse), along)))), dtype)

    def gradient_scale(self, node: Node, dy: Value, x: Value, inverse: Value) -> Value:
        wide, scale = inverse.type.dtype, node.inputs[1]
        product = mul(cast(dy, wide), mul(cast(x, wide), inverse))
        return cast(sum_to(product, scale.shape), scale.type.dtype)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """A tile of squares."""
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


# --- functions ---


def _affine(x: Value, length: int, trainable: bool) -> tuple[Value, Value]:
    one = Initial("constant", 1.0)
    dtype = x.type.dtype
    return (
        parameter("scale", (length,), dtype, one, trainable),
        parameter("bias", (length,), dtype, trainable=trainable),
    )


def _epsilon(where: str, epsilon: float) -> float:
    if not epsilon > 0:
        raise OptionError(f"{where}: epsilon must be above 0, got {epsilon!r}")
    return float(epsilon)


def batch_norm(
    x: Value,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    trainable: bool = True,
    name: str = "norm",
) -> Value:
    """Batch norm of x (batch, channels, ...) with ``scale`` and ``bias`` under scope `name`.

    Makes the states ``running_mean`` and ``running_variance``, which each training step moves by
    `momentum` towards the batch's; a program without an optimizer uses them instead.
    """
    if x.type.rank < 2:
        raise ShapeError(f"batch_norm: x is (batch, channels, ...), got {x.type}")
    with scope(name):
        channels = x.shape[1]
        scale, bias = _affine(x, channels, trainable)
        running = [
            state(scoped_name(kind), (channels,), compute_dtype(x.type.dtype), start, "statistic")
            for kind, start in (("running_mean", 0.0), ("running_variance", 1.0))
        ]
        attributes = BatchNormAttributes(_epsilon("batch_norm", epsilon), float(momentum))
        return apply(BatchNorm, x, scale, bias, *running, attributes=attributes).outputs[0]


def layer_norm(
    x: Value, epsilon: float = 1e-5, trainable: bool = True, name: str = "norm"
) -> Value:
    """Layer norm over the last axis, with ``scale`` and ``bias`` under scope `name`."""
    with scope(name):
        scale, bias = _affine(x, x.shape[-1], trainable)
        attributes = EpsilonAttributes(_epsilon("layer_norm", epsilon))
        return apply(LayerNorm, x, scale, bias, attributes=attributes).outputs[0]


def group_norm(
    x: Value, groups: int, epsilon: float = 1e-5, trainable: bool = True, name: str = "norm"
) -> Value:
    """Group norm of x (batch, channels, ...), with ``scale`` and ``bias`` under scope `name`."""
    with scope(name):
        scale, bias = _affine(x, x.shape[1], trainable)
        attributes = GroupNormAttributes(groups, _epsilon("group_norm", epsilon))
        return apply(GroupNorm, x, scale, bias, attributes=attributes).outputs[0]


def rms_norm(x: Value, epsilon: float = 1e-6, trainable: bool = True, name: str = "norm") -> Value:
    """Root-mean-square norm over the last axis, with ``scale`` under scope `name`."""
    with scope(name):
        one = Initial("constant", 1.0)
        scale = parameter("scale", (x.shape[-1],), x.type.dtype, one, trainable)
        attributes = EpsilonAttributes(_epsilon("rms_norm", epsilon))
        return apply(RmsNorm, x, scale, attributes=attributes).outputs[0]
