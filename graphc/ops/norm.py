"""Layer and group norm, and the base of norms.

The CPU arithmetic is in `graphc.ops.cpu.norm`. The gradients, in `graphc.ops.norm_gradient`, use x
and the saved statistics: the mean and 1 / standard deviation. For a 16-bit x, statistics are
float32; scale, bias and their gradients are 16-bit or float32.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any

from graphc.devices.device import Device
from graphc.errors import OptionError, ShapeError, quoted
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import apply, as_value, layer_scope, parameter
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, normalize_axis
from graphc.ops.choice import cast
from graphc.ops.cpu.norm import folded_statistic, normalise, tile_shape
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.elementwise import scale as scale_by
from graphc.ops.frame import Frame, groups_frame, rows_frame
from graphc.ops.norm_gradient import (
    NormBiasGradient,
    NormGradientAttributes,
    NormInputGradient,
    NormScaleGradient,
    check_dtypes,
)
from graphc.ops.shape import broadcast_to, full, reshape
from graphc.ops.weights import frozen_alone

Epsilon = Annotated[float, Between(above=0.0)]
"""The number added to a variance or mean square before its root, above 0."""


class Norm(Op):
    """Base of the forward ops of norms."""

    outputs = ("y", "mean", "inverse")
    independent = {"mean": ("scale", "bias"), "inverse": ("scale", "bias")}
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    flops_per_element = 8
    wide_inputs = ("scale", "bias", "running_mean", "running_variance")

    def frame(self, node: Node) -> Frame:
        """Return the frame of a norm node: the folded shape of its x, with axes."""
        return self.frame_of(node.attributes, node.inputs[0].shape)

    def frame_of(self, attributes: Any, shape: tuple[int, ...]) -> Frame:
        """Return the frame of a norm over an x of `shape`.

        Raises `ShapeError` for a shape that does not fit.
        """
        raise NotImplementedError

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        """Return the types of y, the means and the inverse deviations. Statistics have one axis."""
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
        """Reshape a statistic so that it broadcasts over the folded shape of the frame."""
        return reshape(statistic, self.frame(node).statistic_shape)

    def _spread(self, node: Node, values: Value) -> Value:
        """Broadcast values over the frame, and convert them to the shape and dtype of x."""
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
        """Return the scratch types: a tile of squares, and one mean correction per statistic."""
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


# --- layer, group and root mean square norm ---


@dataclass(frozen=True, slots=True)
class EpsilonAttributes:
    """The number `epsilon` that is added to the variance."""

    epsilon: Epsilon


class LayerNorm(Norm):
    """Layer norm over the last axis (Ba, Kiros and Hinton, 2016)."""

    name, inputs = "layer_norm", ("x", "scale", "bias")
    attributes = EpsilonAttributes

    def frame_of(self, attributes: EpsilonAttributes, shape: tuple[int, ...]) -> Frame:
        if not shape:
            raise ShapeError("a norm needs at least one axis, got a scalar x")
        return rows_frame(shape)


@dataclass(frozen=True, slots=True)
class GroupNormAttributes:
    """The number of channel groups, and the `epsilon` that is added to the variance."""

    groups: Annotated[int, Whole(1)]
    epsilon: Epsilon


class GroupNorm(Norm):
    """Group norm over a group of channels and all positions of one example (Wu and He, 2018)."""

    name, inputs = "group_norm", ("x", "scale", "bias")
    attributes = GroupNormAttributes

    def frame_of(self, attributes: GroupNormAttributes, shape: tuple[int, ...]) -> Frame:
        groups = attributes.groups
        if len(shape) < 2 or shape[1] % groups:
            raise ShapeError(
                f"x must be (batch, channels, ...) with channels divisible by the {groups} groups, "
                f"got {list(shape)}"
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
    """Return ``scale`` and ``bias``, both (length,): given, or created in the current scope.

    Initially, a created scale is 1 and a created bias 0. If only one of the two is given, the other
    is a constant 1 or 0.
    """
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
                f"{where}: {name} must have one number per channel, ({length},) for x of "
                f"{x.type}, got {value.type}"
            )
        pair.append(frozen_alone(where, value, trainable))
    return pair[0], pair[1]


def checked_epsilon(where: str, epsilon: float) -> float:
    """Return `epsilon` as a float; raises `OptionError` unless it is above 0 and below 1."""
    Between(above=0.0).check(f"{where}: epsilon", epsilon)
    if epsilon >= 1:
        raise OptionError(
            f"{where}: epsilon must be below 1, got {quoted(epsilon)}; the extent of the "
            "normalized axes is that of x, and is not given"
        )
    return float(epsilon)


def extent_of(where: str, x: Value, axis: int) -> int:
    """Return the extent of an axis.

    Raises `ShapeError` if x does not have the axis, and `OptionError` if x is not a value.
    """
    shape = as_value(where, x).shape
    return shape[normalize_axis(axis, len(shape), where)]


def layer_norm(
    x: Value,
    epsilon: float = 1e-5,
    trainable: bool = True,
    name: str | None = None,
    scale: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Apply layer norm to float x over its last axis (Ba, Kiros and Hinton, 2016); keeps the shape.

    Creates ``scale`` (ones) and ``bias`` (zeros), with the extent of the axis, under scope `name`
    or ``norm``. If one of the two is given, nothing is created, and the other is a constant 1 or 0.
    `epsilon` is added to the variance. Raises `OptionError` unless 0 < `epsilon` < 1, and
    `ShapeError` for a scale or a bias of another extent.
    """
    with layer_scope("norm", name, "norm"):
        length = extent_of("layer_norm", x, -1)
        scale, bias = scale_and_bias("layer_norm", x, length, trainable, scale, bias)
        attributes = EpsilonAttributes(checked_epsilon("layer_norm", epsilon))
        return apply(LayerNorm, x, scale, bias, attributes=attributes).outputs[0]


def group_norm(
    x: Value,
    groups: int,
    epsilon: float = 1e-5,
    trainable: bool = True,
    name: str | None = None,
    scale: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Apply group norm to float x (batch, channels, ...) (Wu and He, 2018); keeps the shape.

    Each group of channels is normalized over its channels and all positions. Creates ``scale``
    (ones) and ``bias`` (zeros), both (channels,), under scope `name` or ``norm``, unless given as
    for `layer_norm`. `epsilon` is added to the variance. Raises `ShapeError` if `groups` does not
    divide the channels, and `OptionError` unless 0 < `epsilon` < 1.
    """
    with layer_scope("norm", name, "norm"):
        length = extent_of("group_norm", x, 1)
        scale, bias = scale_and_bias("group_norm", x, length, trainable, scale, bias)
        attributes = GroupNormAttributes(groups, checked_epsilon("group_norm", epsilon))
        return apply(GroupNorm, x, scale, bias, attributes=attributes).outputs[0]
