"""Normalization layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.builder import apply
from graphc.ir.graph import State, Value
from graphc.ops.batch_norm import BatchNorm, BatchNormAttributes, by_statistics
from graphc.ops.norm import EpsilonAttributes, GroupNorm, GroupNormAttributes, LayerNorm
from graphc.ops.rms_norm import RmsNorm
from graphc.torch.importing.calls import Moved, Result, TorchCall, rule


def _factors(call: TorchCall, x: Value, length: int) -> tuple[Value, Value]:
    """Return scale and bias, which default to 1 and 0."""
    scale, bias = call.optional("weight"), call.optional("bias")
    one, zero = (graphc.full((length,), n, x.type.dtype) for n in (1.0, 0.0))
    return (
        one if scale is None else graphc.reshape(scale, (-1,)),
        zero if bias is None else graphc.reshape(bias, (-1,)),
    )


@rule(
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
)
def batch_norm(call: TorchCall) -> Result:
    """Normalize by batch statistics, updating running ones, in training, else by running ones."""
    x = call.value("input")
    scale, bias = _factors(call, x, x.shape[1])
    epsilon = float(call["eps"])
    has_running = call.has("running_mean")
    if not call.get("training", False):
        running = (call.value("running_mean"), call.value("running_var"))
        y = by_statistics(x, scale, bias, *running, epsilon)
    elif has_running:
        return _training(call, x, scale, bias, epsilon)
    else:
        axes = [i for i in range(x.type.rank) if i != 1]
        wide = graphc.cast(x, "float32") if x.type.dtype.itemsize == 2 else x
        found, spread = graphc.mean(wide, axes), graphc.var(wide, axes)
        y = by_statistics(x, scale, bias, found, spread, epsilon)
    return y if call.operator == "batch_norm" else _alone(call, y)


def _training(call: TorchCall, x: Value, scale: Value, bias: Value, epsilon: float) -> Result:
    """Return a norm that updates running statistics, which must be states."""
    mean, variance = call["running_mean"], call["running_var"]
    if not isinstance(mean, State) or not isinstance(variance, State):
        raise UnsupportedError(
            "running statistics must be buffers that one norm updates, once per step; use a "
            "separate norm for each call, or set track_running_stats=False"
        )
    attributes = BatchNormAttributes(epsilon, float(call["momentum"]))
    y = apply(BatchNorm, x, scale, bias, mean, variance, attributes=attributes).outputs[0]
    return (*_alone(call, y), Moved(mean), Moved(variance))


def _alone(call: TorchCall, y: Value) -> Sequence[Value | None]:
    """Return the result without batch statistics, which have no use in a functional graph."""
    if call.wants(1) or call.wants(2):
        raise UnsupportedError("batch statistics are not supported as outputs")
    return (y, None, None)


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: TorchCall) -> Result:
    """Normalize over the last axes."""
    x = call.value("input")
    length = math.prod(call["normalized_shape"])
    scale, bias = _factors(call, x, length)
    rows = graphc.reshape(x, (-1, length))
    guard = EpsilonAttributes(float(call["eps"]))
    y = graphc.reshape(apply(LayerNorm, rows, scale, bias, attributes=guard).outputs[0], x.shape)
    return y if call.operator == "layer_norm" else _alone(call, y)


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(call: TorchCall) -> Result:
    """Normalize over the last axes without a mean; epsilon defaults to that of the dtype."""
    x = call.value("input")
    length = math.prod(call["normalized_shape"])
    scale, _ = _factors(call, x, length)
    given = call.get("eps")
    epsilon = torch.finfo(getattr(torch, str(x.type.dtype))).eps if given is None else float(given)
    rows = graphc.reshape(x, (-1, length))
    guard = EpsilonAttributes(epsilon)
    y = graphc.reshape(apply(RmsNorm, rows, scale, attributes=guard).outputs[0], x.shape)
    if call.operator == "rms_norm":
        return y
    if call.wants(1):
        raise UnsupportedError("the normalization factor is not supported as an output")
    return (y, None)


@rule("group_norm", "native_group_norm")
def group_norm(call: TorchCall) -> Result:
    """Normalize over groups of channels and all positions."""
    x = call.value("input")
    scale, bias = _factors(call, x, x.shape[1])
    groups = int(call["num_groups"] if "num_groups" in call.arguments else call["group"])
    y = _by_groups(x, groups, float(call["eps"]), scale, bias)
    return y if call.operator == "group_norm" else _alone(call, y)


@rule("instance_norm")
def instance_norm(call: TorchCall) -> Value:
    """Normalize over all positions of a channel; each channel is a group."""
    x = call.value("input")
    scale, bias = _factors(call, x, x.shape[1])
    epsilon = float(call["eps"])
    if not call["use_input_stats"]:
        running = (call.value("running_mean"), call.value("running_var"))
        return by_statistics(x, scale, bias, *running, epsilon)
    if call.has("running_mean"):
        raise UnsupportedError("running statistics are not supported for instance norm")
    return _by_groups(x, x.shape[1], epsilon, scale, bias)


def _by_groups(x: Value, groups: int, epsilon: float, scale: Value, bias: Value) -> Value:
    attributes = GroupNormAttributes(groups, epsilon)
    return apply(GroupNorm, x, scale, bias, attributes=attributes).outputs[0]
