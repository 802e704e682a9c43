"""Elementwise losses of predictions and targets, reduced to scalars for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated

from graphc.errors import DTypeError, ShapeError, choose, truth
from graphc.ir.attributes import Between
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.types import number_of
from graphc.ops.activation import relu, sigmoid
from graphc.ops.batch_total import batch_sum
from graphc.ops.choice import greater, less_equal, maximum, where
from graphc.ops.elementwise import (
    FloatElementwise,
    add,
    exp,
    log,
    mul,
    neg,
    scale,
    shift,
    sub,
    zero,
)
from graphc.ops.power import power
from graphc.ops.reduce import mean, sum
from graphc.ops.rounding import abs
from graphc.ops.shape import full

REDUCTIONS = ("mean", "sum", "none")


class BinaryCrossEntropy(FloatElementwise):
    """y = -positive · target · log σ(x) - (1 - target) · log σ(-x), without overflow."""

    name, inputs = "binary_cross_entropy", ("x", "target", "positive")
    precision = "wide"
    expression = (
        "positive * target * (maximum(-x, 0) + log(1 + exp(-maximum(x, -x)))) + "
        "(1 - target) * (maximum(x, 0) + log(1 + exp(-maximum(x, -x))))"
    )

    def gradient_x(self, node: Node, dy: Value, x: Value, target: Value, positive: Value) -> Value:
        """Return dy · (σ(x) · (1 - target + positive · target) - positive · target)."""
        hit = mul(positive, target)
        return mul(dy, sub(mul(sigmoid(x), add(shift(neg(target), 1.0), hit)), hit))

    def gradient_target(self, node: Node, dy: Value, x: Value, positive: Value) -> Value:
        one = full((), 1.0, x.type.dtype)
        ends = [apply(BinaryCrossEntropy, x, t, positive).output for t in (one, zero(x))]
        return mul(dy, sub(*ends))

    def gradient_positive(self, node: Node, dy: Value, x: Value, target: Value) -> Value:
        one = full((), 1.0, x.type.dtype)
        return mul(dy, mul(target, apply(BinaryCrossEntropy, x, one, one).output))


@dataclass(frozen=True, slots=True)
class HuberAttributes:
    """The absolute error above which the loss grows linearly."""

    delta: Annotated[float, Between(above=0.0)]


class Huber(FloatElementwise):
    """y = x² / 2 if |x| is at most delta, else delta · (|x| - delta / 2) (Huber, 1964)."""

    name, inputs = "huber", ("x",)
    attributes = HuberAttributes
    expression = (
        "where(maximum(x, -x) <= delta, 0.5 * x * x, delta * (maximum(x, -x) - 0.5 * delta))"
    )

    def gradient(self, node: Node, dy: Value, x: Value) -> Value:
        return apply(HuberGradient, x, dy, attributes=node.attributes).output


class HuberGradient(FloatElementwise):
    """dx = dy · x, with x clipped at delta on both sides."""

    name, inputs, outputs = "huber_gradient", ("x", "dy"), ("dx",)
    attributes = HuberAttributes
    expression = "dy * where(x > delta, delta, where(x < -delta, -delta, x))"

    def gradient_x(self, node: Node, ddx: Value, x: Value, dy: Value) -> Value:
        inside = less_equal(maximum(x, neg(x)), node.attributes.delta)
        return where(inside, mul(ddx, dy), zero(dy))

    def gradient_dy(self, node: Node, ddx: Value, x: Value) -> Value:
        return apply(HuberGradient, x, ddx, attributes=node.attributes).output


# --- functions ---


def reduced(name: str, losses: Value, reduction: str, kinds: Sequence[str] = REDUCTIONS) -> Value:
    """Reduce losses by `reduction`; raises `OptionError` for one that is not in `kinds`."""
    match choose(f"{name}: reduction", reduction, kinds):
        case "mean":
            return mean(losses)
        case "sum":
            return batch_sum(sum(losses))
        case "batchmean":
            return scale(sum(losses), 1 / losses.shape[0])
    return losses


def check_floats(name: str, *operands: object) -> None:
    """Raise an error that names the loss `name` unless all operands are float values or numbers."""
    for operand in operands:
        if isinstance(operand, Real):
            continue
        type = as_value(name, operand).type
        if type.dtype.kind != "float":
            raise DTypeError(
                f"{name}: operands must be floats, got {type}; convert with graphc.cast"
            )


def mse(prediction: Value, target: Value, *, reduction: str = "mean") -> Value:
    """Return the mean over all elements of (prediction - target)², a scalar.

    Both operands broadcast.

    `reduction` is "mean", "sum", or "none" for the losses of all elements.
    """
    check_floats("mse", prediction, target)
    return reduced("mse", power(sub(prediction, target), 2.0), reduction)


def l1(prediction: Value, target: Value, *, reduction: str = "mean") -> Value:
    """Return the mean over all elements of |prediction - target|, a scalar.

    Both operands broadcast.

    `reduction` is "mean", "sum", or "none" for the losses of all elements.
    """
    check_floats("l1", prediction, target)
    return reduced("l1", abs(sub(prediction, target)), reduction)


def huber(
    prediction: Value, target: Value, *, delta: float = 1.0, reduction: str = "mean"
) -> Value:
    """Return the Huber loss (1964) of x = prediction - target, reduced.

    `prediction` and `target` are floats and broadcast.

    The loss is x² / 2 if |x| is at most `delta`, else delta · (|x| - delta / 2). `reduction` is
    "mean", "sum", or "none" for the losses of all elements. Raises `OptionError` unless `delta` is
    above 0.
    """
    check_floats("huber", prediction, target)
    attributes = _delta("huber: delta", delta)
    losses = apply(Huber, sub(prediction, target), attributes=attributes).output
    return reduced("huber", losses, reduction)


def smooth_l1(
    prediction: Value, target: Value, *, beta: float = 1.0, reduction: str = "mean"
) -> Value:
    """Return `huber` with delta `beta`, divided by `beta` (Girshick, 2015).

    The slope is 1 or -1 where the absolute error exceeds `beta`.

    Raises `OptionError` unless `beta` is above 0.
    """
    check_floats("smooth_l1", prediction, target)
    attributes = _delta("smooth_l1: beta", beta)
    losses = apply(Huber, sub(prediction, target), attributes=attributes).output
    return scale(reduced("smooth_l1", losses, reduction), 1 / attributes.delta)


def _delta(name: str, given: float) -> HuberAttributes:
    Between(above=0.0).check(name, given)
    return HuberAttributes(float(given))


def binary_cross_entropy_with_logits(
    logits: Value,
    target: Value,
    *,
    weights: Value | None = None,
    pos_weight: Value | None = None,
    reduction: str = "mean",
) -> Value:
    """Return the binary cross entropy of logits and independent labels, reduced.

    It is -target · log σ(logits) - (1 - target) · log σ(-logits). `target` has floats from 0 to 1.
    All operands broadcast. `weights` multiply the losses. `pos_weight` multiplies the first term
    only, so that rare labels count more. `reduction` is "mean" over all elements regardless of
    their weights, "sum", or "none" for the losses of all elements. Raises `DTypeError` unless all
    have one float dtype.
    """
    name = "binary_cross_entropy_with_logits"
    check_floats(name, as_value(name, logits), as_value(f"{name}: target", target))
    if pos_weight is None:
        pos_weight = full((), 1.0, logits.type.dtype)
    positive = as_value(f"{name}: pos_weight", pos_weight)
    losses = apply(BinaryCrossEntropy, logits, target, positive).output
    if weights is not None:
        losses = mul(losses, as_value(f"{name}: weights", weights))
    return reduced(name, losses, reduction)


def kl_divergence(
    log_probabilities: Value,
    target: Value,
    *,
    log_target: bool = False,
    reduction: str = "mean",
) -> Value:
    """Return the Kullback-Leibler divergence from `target`, reduced.

    It is target · (log target - log_probabilities). `target` has probabilities, which may be 0, or
    with `log_target` their logarithms. Both operands broadcast. `reduction` is "mean" over all
    elements, "sum", "batchmean" (the sum over the first extent, as in the definition), or "none"
    for the losses of all elements. Raises `ShapeError` for "batchmean" of a scalar.
    """
    kinds = (*REDUCTIONS, "batchmean")
    check_floats("kl_divergence", log_probabilities, as_value("kl_divergence: target", target))
    if truth("kl_divergence: log_target", log_target):
        losses = mul(exp(target), sub(target, log_probabilities))
    else:
        # 0 · log 0 is 0, and so is its gradient.
        positive = where(greater(target, 0.0), target, 1.0)
        losses = sub(mul(target, log(positive)), mul(target, log_probabilities))
    if reduction == "batchmean" and not losses.shape:
        raise ShapeError('kl_divergence: "batchmean" needs a first axis, got a scalar')
    return reduced("kl_divergence", losses, reduction, kinds)


def hinge(
    prediction: Value, target: Value, *, margin: float = 1.0, reduction: str = "mean"
) -> Value:
    """Return max(0, margin - target · prediction), reduced, for targets -1 and 1.

    The operands broadcast. `reduction` is "mean", "sum", or "none" for the losses of all elements.
    Raises `OptionError` unless `margin` is a number.
    """
    check_floats("hinge", prediction, target)
    product = mul(target, prediction)
    workspace = number_of("hinge: margin", margin, product.type.dtype)
    return reduced("hinge", relu(shift(neg(product), workspace)), reduction)
