"""Losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import graphc
from graphc.ir.graph import Value
from graphc.ops.loss import reduced
from graphc.torch.importing.calls import TorchCall, rule

REDUCTIONS = ("none", "mean", "sum")
"""Reductions, indexed by torch's codes."""


def _reduction(call: TorchCall) -> str:
    return REDUCTIONS[call["reduction"]]


def _axis(x: Value) -> int:
    """Return the axis of classes: the second axis, or the only one."""
    return min(x.type.rank - 1, 1)


@rule("cross_entropy_loss")
def cross_entropy(call: TorchCall) -> Value:
    """Return the cross entropy of logits against class labels or class probabilities."""
    logits, labels, weights = call.value("self"), call.value("target"), call.optional("weight")
    smoothing, reduction = float(call["label_smoothing"]), _reduction(call)
    ignored = None if labels.type.dtype.kind == "float" else int(call["ignore_index"])
    losses = graphc.softmax_cross_entropy(
        logits, labels, ignore_index=ignored, weights=weights, label_smoothing=smoothing,
        reduction=reduction, axis=_axis(logits),
    )  # fmt: skip
    return graphc.reshape(losses, call.shape)


@rule("nll_loss", "nll_loss2d", "nll_loss_nd")
def nll_loss(call: TorchCall) -> Value:
    """Return the negative log likelihood of log probabilities."""
    x = call.value("self")
    losses = graphc.nll_loss(
        x, call.value("target"), ignore_index=int(call["ignore_index"]),
        weights=call.optional("weight"), reduction=_reduction(call), axis=_axis(x),
    )  # fmt: skip
    return graphc.reshape(losses, call.shape)


@rule("mse_loss", "l1_loss")
def distance(call: TorchCall) -> Value:
    """Return the squared or absolute differences."""
    functions: Mapping[str, Callable[..., Value]] = {"mse_loss": graphc.mse, "l1_loss": graphc.l1}
    operands = (graphc.cast(call.value(name), call.dtype) for name in ("self", "target"))
    return functions[call.operator](*operands, reduction=_reduction(call))


@rule("smooth_l1_loss", "huber_loss")
def huber(call: TorchCall) -> Value:
    """Return a loss that is quadratic near 0 and linear beyond."""
    x, target = call.value("self"), call.value("target")
    if call.operator == "huber_loss":
        return graphc.huber(x, target, delta=float(call["delta"]), reduction=_reduction(call))
    if call["beta"] == 0:
        return graphc.l1(x, target, reduction=_reduction(call))
    return graphc.smooth_l1(x, target, beta=float(call["beta"]), reduction=_reduction(call))


@rule("soft_margin_loss")
def soft_margin(call: TorchCall) -> Value:
    """Return log(1 + exp(-target · x)), finite also where the exponential overflows."""
    x, target = (graphc.cast(call.value(name), call.dtype) for name in ("self", "target"))
    losses = graphc.softplus(graphc.neg(graphc.mul(target, x)))
    return reduced("soft_margin_loss", losses, _reduction(call))


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(call: TorchCall) -> Value:
    """Return the binary cross entropy of logits against independent labels."""
    return graphc.binary_cross_entropy_with_logits(
        call.value("self"), call.value("target"), weights=call.optional("weight"),
        pos_weight=call.optional("pos_weight"), reduction=_reduction(call),
    )  # fmt: skip


LEAST_LOG = -100.0
"""The lower bound that torch uses for logarithms."""


@rule("binary_cross_entropy")
def binary_cross_entropy(call: TorchCall) -> Value:
    """Return the binary cross entropy of probabilities against independent labels."""
    x, target = call.value("self"), call.value("target")
    likely, unlikely = _log(x), _log(graphc.sub(1.0, x))
    losses = graphc.neg(
        graphc.add(graphc.mul(target, likely), graphc.mul(graphc.sub(1.0, target), unlikely))
    )
    if call.has("weight"):
        losses = graphc.mul(losses, call.value("weight"))
    return reduced("binary_cross_entropy", losses, _reduction(call))


def _log(x: Value) -> Value:
    """Return log(x), at least `LEAST_LOG`; the gradient at 0 is 0."""
    is_0 = graphc.equal(x, 0.0)
    found = graphc.maximum(graphc.log(graphc.where(is_0, 1.0, x)), LEAST_LOG)
    return graphc.where(is_0, LEAST_LOG, found)


@rule("kl_div")
def kl_divergence(call: TorchCall) -> Value:
    """Return the Kullback-Leibler divergence of two distributions."""
    return graphc.kl_divergence(
        call.value("self"), call.value("target"), log_target=bool(call["log_target"]),
        reduction=_reduction(call),
    )  # fmt: skip
