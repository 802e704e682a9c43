"""Batch norm: training form, running statistics, and inference form."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from graphc.errors import OptionError, ShapeError, number_between, truth
from graphc.ir.attributes import Between
from graphc.ir.builder import apply, as_value, layer_scope, scoped_name, state
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import TensorType, broadcast_shapes, compute_dtype
from graphc.ops.choice import cast
from graphc.ops.elementwise import (
    Elementwise,
    add,
    div,
    mul,
    neg,
    shift,
    sqrt,
    sub,
)
from graphc.ops.elementwise import scale as scale_by
from graphc.ops.frame import Frame, channels_frame
from graphc.ops.norm import Epsilon, Norm, checked_epsilon, scale_and_bias
from graphc.ops.norm_gradient import check_dtypes
from graphc.ops.power import power
from graphc.ops.reduce import sum_to
from graphc.ops.shape import reshape
from graphc.ops.update import Update

Momentum = Annotated[float, Between(0.0, 1.0)]
"""The weight of the current batch in the running statistics."""


@dataclass(frozen=True, slots=True)
class BatchNormAttributes:
    """The `epsilon` added to the variance, and the weight of a batch in the running statistics."""

    epsilon: Epsilon
    momentum: Momentum


class BatchNorm(Norm):
    """Batch norm over the batch and all positions, per channel (Ioffe and Szegedy, 2015).

    The output does not depend on the running statistics: they are inputs so that the node refers to
    them. A training step updates them, and inference uses them instead of the batch statistics.
    """

    name = "batch_norm"
    inputs = ("x", "scale", "bias", "running_mean", "running_variance")
    strided_axes = {"x": 1, "y": 1}
    attributes = BatchNormAttributes
    on_maps = True

    def frame_of(self, attributes: BatchNormAttributes, shape: tuple[int, ...]) -> Frame:
        if len(shape) < 2:
            raise ShapeError(f"x must be (batch, channels, ...), got {list(shape)}")
        return channels_frame(shape)

    def effects(self, copies: Sequence[Node]) -> tuple[Node, ...]:
        """Return the updates of the running statistics by averages over a step's micro-batches."""
        means, inverses = ([copy.outputs[i] for copy in copies] for i in (1, 2))
        return moved_statistics(copies[0], means, inverses, self.frame(copies[0]).count)

    def inference(self, node: Node) -> Value:
        x, scale, bias, mean, variance = node.inputs
        return by_statistics(x, scale, bias, mean, variance, node.attributes.epsilon)


def by_statistics(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    """Normalize x by given statistics, per channel."""
    deviation = sqrt(shift(variance, epsilon))
    return by_factor(x, mean, div(cast(scale, variance.type.dtype), deviation), bias)


def by_factor(x: Value, mean: Value, factor: Value, bias: Value) -> Value:
    """Compute (x - mean) · factor + bias; mean, factor and bias have one number per channel."""
    shape = channels_frame(x.shape).parameter_shape
    operands = (x, *(reshape(value, shape) for value in (mean, factor, bias)))
    return apply(BatchNormInference, *operands).output


def moved_statistics(
    node: Node, means: Sequence[Value], inverses: Sequence[Value], count: int
) -> tuple[Node, ...]:
    """Return the updates of a norm's running statistics by the statistics of its micro-batches.

    `means` and `inverses`, 1 / standard deviation, have one tensor (channels,) per micro-batch.
    `count` is the number of elements per channel.
    """
    *_, running_mean, running_variance = node.inputs
    inverse = inverses[0]
    if len(inverses) > 1:  # computed from the average variance
        inverse = power(_average([power(value, -2.0) for value in inverses]), -0.5)
    momentum, unbiased = node.attributes.momentum, count / max(count - 1, 1)
    variance = RunningVarianceAttributes(momentum, node.attributes.epsilon, unbiased)
    weight = RunningMeanAttributes(momentum)
    return (
        apply(RunningMeanUpdate, running_mean, _average(means), attributes=weight),
        apply(RunningVarianceUpdate, running_variance, inverse, attributes=variance),
    )


def _average(values: Sequence[Value]) -> Value:
    total = functools.reduce(add, values)
    return scale_by(total, 1 / len(values)) if len(values) > 1 else total


class BatchNormInference(Elementwise):
    """y = (x - mean) · factor + bias, with given statistics."""

    name, inputs = "batch_norm_inference", ("x", "mean", "factor", "bias")
    expression = "(x - mean) * factor + bias"
    may_overwrite = {"y": ("x",)}
    wide_inputs = ("mean", "factor", "bias")

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        x, *others = types
        check_dtypes(x, *others)
        shape = broadcast_shapes(self.name, *(type.shape for type in types))
        if shape != x.shape:
            raise ShapeError(f"statistics must broadcast to x, got {', '.join(map(str, types))}")
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
    """The weight of the batch mean in the running mean."""

    momentum: Momentum


class RunningMeanUpdate(Update):
    """running ← (1 - momentum) · running + momentum · mean."""

    name, inputs, outputs = "running_mean_update", ("running", "mean"), ("running_new",)
    attributes = RunningMeanAttributes
    must_overwrite = {"running_new": "running"}
    expressions = {"running_new": "(1 - momentum) * running + momentum * mean"}


@dataclass(frozen=True, slots=True)
class RunningVarianceAttributes:
    """The weight of the batch variance, the norm's `epsilon`, and the bias correction n / (n -
    1)."""

    momentum: Momentum
    epsilon: Epsilon
    unbiased: Annotated[float, Between(1.0, 2.0)]


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


def batch_norm(
    x: Value,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
    trainable: bool = True,
    name: str | None = None,
    scale: Value | None = None,
    bias: Value | None = None,
    running_mean: Value | None = None,
    running_variance: Value | None = None,
    frozen: bool = False,
) -> Value:
    """Apply batch norm to float x (batch, channels, ...) (Ioffe and Szegedy, 2015).

    It keeps the shape. Creates ``scale`` and ``bias`` (channels,) under scope `name` or ``norm``,
    and the states ``running_mean`` and ``running_variance``. A training step replaces each running
    statistic by (1 - momentum) · running + momentum · batch statistic. A program without an
    optimizer normalizes by the running statistics. With `frozen` every program does, and none
    updates them. `epsilon` is added to the variance.

    A `scale` or `bias` may be given as for `layer_norm`. Both running statistics may be given, too:
    as states, such as `graphc.parameter(..., trainable=False)`, or as any values for a frozen norm.
    Raises `ShapeError` if x has fewer than two axes or a given value is not (channels,). Raises
    `OptionError` unless 0 < `epsilon` < 1 and 0 <= `momentum` <= 1, and for given statistics
    that a step cannot update.
    """
    if as_value("batch_norm", x).type.rank < 2:
        raise ShapeError(f"batch_norm: x must be (batch, channels, ...), got {x.type}")
    is_frozen = truth("batch_norm: frozen", frozen)
    with layer_scope("norm", name, "norm"):
        channels = x.shape[1]
        factors = scale_and_bias("batch_norm", x, channels, trainable, scale, bias)
        running = _running(x, running_mean, running_variance, is_frozen)
        weight = number_between("batch_norm: momentum", momentum, 0, 1)
        attributes = BatchNormAttributes(checked_epsilon("batch_norm", epsilon), weight)
        if is_frozen:
            return by_statistics(x, *factors, *running, attributes.epsilon)
        return apply(BatchNorm, x, *factors, *running, attributes=attributes).outputs[0]


def _running(
    x: Value, mean: Value | None, variance: Value | None, frozen: bool
) -> tuple[Value, Value]:
    """Return the running mean and variance: the given values, or new states."""
    wide, length = compute_dtype(x.type.dtype), (x.shape[1],)
    if mean is None and variance is None:
        return (
            state(scoped_name("running_mean"), length, wide, 0.0, "statistic"),
            state(scoped_name("running_variance"), length, wide, 1.0, "statistic"),
        )
    if mean is None or variance is None:
        missing = "running_mean" if mean is None else "running_variance"
        raise OptionError(
            "batch_norm: running_mean and running_variance must be given together; "
            f"{missing} is missing"
        )
    for name, given in (("running_mean", mean), ("running_variance", variance)):
        if as_value(f"batch_norm: {name}", given).shape != length:
            raise ShapeError(
                f"batch_norm: {name} must have one number per channel of x, {length} for "
                f"{x.type}, got {given.type}"
            )
        moves = isinstance(given, State) and given.role != "constant" and not given.trainable
        if not (moves or frozen):
            raise OptionError(
                f"batch_norm: a training step updates {name}, so it must be a state with "
                f"trainable=False, such as graphc.parameter(..., trainable=False), got {given!r}; "
                "or pass frozen=True to leave it unchanged"
            )
    return mean, variance
