"""Normalisation: layer and group, and what batch norm and root mean square share with them.

The arithmetic is in cpu/norm.py.

The gradients read x and the saved statistics, which are float32 for an x of 16 bits; parameters and
their gradients may be, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import DTypeError, ShapeError
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import apply, as_value, parameter, scope
from graphc.ir.device import Device
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import DType, TensorType, compute_dtype, normalize_axis
from graphc.ops.choice import cast
from graphc.ops.cpu.norm import (
    folded_statistic,
    normalise,
    normalise_back,
    scale_back,
    tile_shape,
)
from graphc.ops.elementwise import add, float_dtype, mul, sub
from graphc.ops.elementwise import scale as scale_by
from graphc.ops.frame import Frame, groups_frame, rows_frame
from graphc.ops.shape import broadcast_to, full, reshape
from graphc.ops.weights import frozen_alone


def check_dtypes(x: TensorType, *others: TensorType) -> DType:
    """The dtype of x's statistics; raises `DTypeError` unless the others have it, or x's own."""
    wide = compute_dtype(float_dtype(x))
    for type in others:
        if type.dtype not in (x.dtype, wide):
            raise DTypeError(
                f"beside x of {x.dtype}, parameters and statistics are {wide}, got {type.dtype}; "
                "convert one with graphc.cast"
            )
    return wide


Epsilon = Annotated[float, Between(above=0.0)]
"""The guard in a root."""


class Norm(Op):
    """Base of the forward ops."""

    outputs = ("y", "mean", "inverse")
    independent = {"mean": ("scale", "bias"), "inverse": ("scale", "bias")}
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    flops_per_element = 8
    wide_inputs = ("scale", "bias", "running_mean", "running_variance")

    def frame(self, node: Node) -> Frame:
        """The frame of a node: how it looks at its x."""
        return self.frame_of(node.attributes, node.inputs[0].shape)

    def frame_of(self, attributes: Any, shape: tuple[int, ...]) -> Frame:
        """The frame of attributes and a shape; raises `ShapeError` where they do not fit."""
        raise NotImplementedError

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        """y is like x; each statistic has one mean and one inverse deviation, flat."""
        x, *parameters = types
        wide = check_dtypes(x, *parameters)
        frame = self.frame_of(attributes, x.shape)
        length = math.prod(frame.parameter_shape)
        if any(p.shape != (length,) for p in parameters):
            raise ShapeError(f"scale and bias must have the shape ({length},), got {parameters}")
        statistic = TensorType((math.prod(frame.statistic_shape),), wide)
        return x, statistic, statistic

    def gradient_x(
        self, node: Node, dy: Value | None, dmean: Value | None, dinverse: Value | None,
        x: Value, mean: Value, inverse: Value, scale: Value,
    ) -> Value:  # fmt: skip
        parts = []
        if dy is not None:
            operands, attributes = (dy, x, mean, inverse, scale), self._attributes(node)
            parts.append(apply(NormInputGradient, *operands, attributes=attributes).output)
        if dmean is not None:
            each = scale_by(dmean, 1 / self.frame(node).count)
            parts.append(self._spread(node, self._folded(node, each)))
        if dinverse is not None:
            slope = mul(dinverse, mul(inverse, mul(inverse, inverse)))
            each = self._folded(node, scale_by(slope, -1 / self.frame(node).count))
            wide = reshape(cast(x, inverse.type.dtype), self.frame(node).shape)
            parts.append(self._spread(node, mul(each, sub(wide, self._folded(node, mean)))))
        return functools.reduce(add, parts)

    def _folded(self, node: Node, statistic: Value) -> Value:
        """Statistics in the shape that broadcasts over the frame."""
        return reshape(statistic, self.frame(node).statistic_shape)

    def _spread(self, node: Node, values: Value) -> Value:
        """Values that broadcast over the frame, as the elements of x."""
        x = node.inputs[0]
        return cast(reshape(broadcast_to(values, self.frame(node).shape), x.shape), x.type.dtype)

    def gradient_scale(
        self, node: Node, dy: Value | None, x: Value, mean: Value, inverse: Value
    ) -> Value | None:
        if dy is None:
            return None
        attributes = self._attributes(node)
        dscale = apply(NormScaleGradient, dy, x, mean, inverse, attributes=attributes).output
        return cast(dscale, node.inputs[1].type.dtype)

    def gradient_bias(self, node: Node, dy: Value | None) -> Value | None:
        if dy is None:
            return None
        dbias = apply(NormBiasGradient, dy, attributes=self._attributes(node)).output
        return cast(dbias, node.inputs[2].type.dtype)

    def _attributes(self, node: Node) -> NormGradientAttributes:
        frame = self.frame(node)
        return NormGradientAttributes(frame.shape, frame.statistic_axes, frame.parameter_axes)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """A tile of squares, and a correction a statistic."""
        frame, x = self.frame(node), node.inputs[0].type
        statistic = x.with_shape(frame.statistic_shape)
        return x.with_shape(tile_shape(frame, across=False)), statistic

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
    """The attributes of a norm's gradient: a `Frame`."""

    shape: tuple[int, ...]
    statistic_axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]

    def frame(self) -> Frame:
        return Frame(self.shape, self.statistic_axes, self.parameter_axes)

    def check(self, dy: TensorType, x: TensorType, statistics: Sequence[TensorType]) -> Frame:
        """The frame; raises an error unless a norm looks so at x, and the others belong to it."""
        float_dtype(dy, x)
        if dy.shape != x.shape or not self.frame().suits(x.shape):
            raise ShapeError(f"dy is like x, and {self.frame()} the frame of a norm over {x}, {dy}")
        length = math.prod(self.frame().statistic_shape)
        if any(statistic.shape != (length,) for statistic in statistics):
            raise ShapeError(f"statistics have the shape ({length},), got {statistics}")
        check_dtypes(x, *statistics)
        return self.frame()


class NormGradient(Op):
    """Base: what is not folded may have strides along the batch."""

    attributes = NormGradientAttributes

    def free_axes(self, node: Node, name: str) -> int:
        is_folded = node.attributes.shape != node.inputs[0].shape
        if name in ("dy", "x", "dx"):
            return 0 if is_folded else 1
        return super().free_axes(node, name)


class NormInputGradient(NormGradient):
    """dx = inverse · (g - mean g - x̂ · mean(g · x̂)), g = dy · scale, x̂ = (x - mean) · inverse."""

    name, inputs = "norm_input_gradient", ("dy", "x", "mean", "inverse", "scale")
    outputs = ("dx",)
    may_overwrite = {"dx": ("x", "dy")}
    flops_per_element = 11

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        dy, x, mean, inverse, scale = types
        frame = attributes.check(dy, x, (mean, inverse))
        check_dtypes(x, scale)
        if scale.shape != (math.prod(frame.parameter_shape),):
            raise ShapeError(f"scale has one number a parameter of {frame}, got {scale}")
        return dy

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Two tiles, and two numbers a statistic."""
        frame, dy = node.attributes.frame(), node.inputs[0].type
        tile = dy.with_shape(tile_shape(frame, across=False))
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


class NormParameterGradient(NormGradient):
    """Base: sums over all axes but the parameters'."""

    flops_per_element = 1

    def infer(self, attributes: NormGradientAttributes, *types: TensorType) -> TensorType:
        dy, x, *statistics = types if len(types) > 1 else types * 2
        frame = attributes.check(dy, x, statistics)
        return TensorType((math.prod(frame.parameter_shape),), check_dtypes(dy))

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
        return dy.with_shape(tile_shape(frame, across=True)), dy.with_shape(frame.parameter_shape)

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


# --- layer, group and root mean square norm ---


@dataclass(frozen=True, slots=True)
class EpsilonAttributes:
    """The guard in the root."""

    epsilon: Epsilon


class LayerNorm(Norm):
    """Over the last axis (Ba, Kiros and Hinton, 2016)."""

    name, inputs = "layer_norm", ("x", "scale", "bias")
    attributes = EpsilonAttributes

    def frame_of(self, attributes: EpsilonAttributes, shape: tuple[int, ...]) -> Frame:
        if not shape:
            raise ShapeError("x has no axis to normalise over")
        return rows_frame(shape)


@dataclass(frozen=True, slots=True)
class GroupNormAttributes:
    """Groups of channels, and the guard in the root."""

    groups: Annotated[int, Whole(1)]
    epsilon: Epsilon


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
        return groups_frame(shape, groups)


# --- functions ---


def scale_and_bias(
    where: str,
    x: Value,
    length: int,
    trainable: bool,
    scale: Value | None = None,
    bias: Value | None = None,
) -> tuple[Value, Value]:
    """``scale``, one, and ``bias``, zero, of that length in the current scope; or those that are
    given, and the number in place of one that is not."""
    one, dtype = Initial("constant", 1.0), x.type.dtype
    if scale is None and bias is None:
        return (
            parameter("scale", (length,), dtype, one, trainable),
            parameter("bias", (length,), dtype, trainable=trainable),
        )
    pair = []
    for name, given, number in (("scale", scale, 1.0), ("bias", bias, 0.0)):
        value = full((length,), number, dtype) if given is None else given
        if as_value(f"{where}: {name}", value).shape != (length,):
            raise ShapeError(
                f"{where}: {name} has one number a channel, ({length},) for x of {x.type}, got "
                f"{value.type}"
            )
        pair.append(frozen_alone(where, value, trainable))
    return pair[0], pair[1]


def positive(where: str, epsilon: float) -> float:
    """The guard in a root; raises `OptionError` unless it is above 0."""
    Between(above=0.0).check(f"{where}: epsilon", epsilon)
    return float(epsilon)


def extent_of(where: str, x: Value, axis: int) -> int:
    """The extent of an axis; raises `ShapeError` where x has none, `OptionError` for no value."""
    shape = as_value(where, x).shape
    return shape[normalize_axis(axis, len(shape), where)]


def layer_norm(
    x: Value,
    epsilon: float = 1e-5,
    trainable: bool = True,
    name: str = "norm",
    scale: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Layer norm of float x over its last axis (Ba, Kiros and Hinton, 2016); keeps the shape.

    Makes ``scale``, one, and ``bias``, zero, of that axis's extent under scope `name`. Where one of
    them is given, nothing is made, and the other is that number if it is left out. `epsilon` is
    added to the variance; raises `OptionError` unless it is above 0, and `ShapeError` for a scale
    or a bias of another extent.
    """
    with scope(name):
        length = extent_of("layer_norm", x, -1)
        scale, bias = scale_and_bias("layer_norm", x, length, trainable, scale, bias)
        attributes = EpsilonAttributes(positive("layer_norm", epsilon))
        return apply(LayerNorm, x, scale, bias, attributes=attributes).outputs[0]


def group_norm(
    x: Value,
    groups: int,
    epsilon: float = 1e-5,
    trainable: bool = True,
    name: str = "norm",
    scale: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Group norm of float x (batch, channels, ...) (Wu and He, 2018); keeps the shape.

    Each group of channels is normalised over itself and all places. Makes ``scale``, one, and
    ``bias``, zero, of (channels,) under scope `name`, unless given as for `layer_norm`. `epsilon`
    is added to the variance. Raises `ShapeError` where `groups` does not divide the channels, and
    `OptionError` unless `epsilon` is above 0.
    """
    with scope(name):
        length = extent_of("group_norm", x, 1)
        scale, bias = scale_and_bias("group_norm", x, length, trainable, scale, bias)
        attributes = GroupNormAttributes(groups, positive("group_norm", epsilon))
        return apply(GroupNorm, x, scale, bias, attributes=attributes).outputs[0]
