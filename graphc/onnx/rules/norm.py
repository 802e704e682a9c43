"""Import of normalization layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.builder import apply
from graphc.ir.graph import State, Value
from graphc.ir.types import compute_dtype, normalize_axis
from graphc.onnx.calls import OnnxCall, rule
from graphc.ops.batch_norm import BatchNorm, BatchNormAttributes, by_statistics
from graphc.ops.norm import EpsilonAttributes, GroupNorm, GroupNormAttributes, LayerNorm
from graphc.ops.rms_norm import RmsNorm


@rule("BatchNormalization")
def batch_norm(call: OnnxCall) -> Sequence[Value | None]:
    """Import batch norm: by batch statistics in training mode, else by the file's statistics.

    The file's statistics are running statistics that training updates. ONNX's momentum is the
    weight of the old value, graphc's the weight of the batch. A training node returns running
    statistics with the biased variance of the batch (divided by n).
    """
    x, scale, bias, mean, variance = (call.value(i) for i in range(5))
    epsilon, kept = call.attribute("epsilon", 1e-5), call.attribute("momentum", 0.9)
    if not call.attribute("training_mode", 0):
        are_states = all(isinstance(v, State) and v.role == "statistic" for v in (mean, variance))
        if are_states:
            moving = BatchNormAttributes(epsilon, 1 - kept)
            operands = (x, scale, bias, mean, variance)
            return (apply(BatchNorm, *operands, attributes=moving).outputs[0],)
        return (_by_statistics(x, scale, bias, mean, variance, epsilon),)
    y, found, spread = by_batch(x, scale, bias, epsilon)
    return y, _moved(mean, found, kept), _moved(variance, spread, kept)


def by_batch(x: Value, scale: Value, bias: Value, epsilon: float) -> tuple[Value, Value, Value]:
    """Normalize x by batch statistics, even in inference; also return their mean and variance."""
    wide = graphc.cast(x, compute_dtype(x.type.dtype))
    axes = [i for i in range(x.type.rank) if i != 1]
    mean = graphc.mean(wide, axes)
    centred = graphc.sub(wide, _per_channel(mean, x))
    variance = graphc.mean(graphc.mul(centred, centred), axes)
    return by_statistics(x, scale, bias, mean, variance, epsilon), mean, variance


def _by_statistics(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    return graphc.batch_norm(
        x, epsilon, scale=scale, bias=bias, running_mean=mean, running_variance=variance,
        frozen=True,
    )  # fmt: skip


def _per_channel(value: Value, x: Value) -> Value:
    return graphc.reshape(value, (-1, *(1,) * (x.type.rank - 2)))


def _moved(running: Value, found: Value, kept: float) -> Value:
    found = graphc.cast(found, running.type.dtype)
    return graphc.add(graphc.mul(running, kept), graphc.mul(found, 1 - kept))


def _rows(call: OnnxCall, x: Value) -> tuple[tuple[int, ...], int]:
    """Return the shape of per-row statistics, and the number of elements of a row."""
    axis = normalize_axis(call.attribute("axis", -1), x.type.rank, call.operator)
    length = math.prod(x.shape[axis:])
    return (*x.shape[:axis], *(1,) * (x.type.rank - axis)), length


def _over_all(call: OnnxCall, weight: Value, x: Value) -> Value | None:
    """Broadcast a weight to the normalized axes of x, and flatten it; None if it has a length in
    another axis."""
    axis = normalize_axis(call.attribute("axis", -1), x.type.rank, call.operator)
    shape = x.shape[axis:]
    before = max(weight.type.rank - len(shape), 0)
    if math.prod(weight.shape[:before]) != 1:
        return None
    weight = graphc.reshape(weight, weight.shape[before:])
    return graphc.reshape(graphc.broadcast_to(weight, shape), (-1,))


@rule("LayerNormalization")
def layer_norm(call: OnnxCall) -> Sequence[Value | None]:
    """Import layer norm over the last axes; emit its statistics only if they are used."""
    x, given = call.value(0), (call.value(1), call.optional(2))
    kept, length = _rows(call, x)
    epsilon = call.attribute("epsilon", 1e-5)
    rows = graphc.reshape(x, (-1, length))
    scale, bias = (None if each is None else _over_all(call, each, x) for each in given)
    dtype = given[0].type.dtype
    operands = (
        rows,
        graphc.full((length,), 1.0, dtype) if scale is None else scale,
        graphc.full((length,), 0.0, dtype) if scale is None or bias is None else bias,
    )
    y = apply(LayerNorm, *operands, attributes=EpsilonAttributes(epsilon)).outputs[0]
    y = graphc.reshape(y, x.shape)
    if scale is None:
        y = graphc.mul(y, given[0])
    if given[1] is not None and (scale is None or bias is None):
        y = graphc.add(y, given[1])
    mean = inverse = None
    if call.wants(1) or call.wants(2):
        wide = graphc.cast(rows, compute_dtype(x.type.dtype))
        found = graphc.mean(wide, 1, True)
        centred = graphc.sub(wide, found)
        variance = graphc.mean(graphc.mul(centred, centred), 1, True)
        mean = graphc.reshape(found, kept)
        inverse = graphc.reshape(graphc.power(graphc.add(variance, epsilon), -0.5), kept)
    return y, mean, inverse


@rule("RMSNormalization")
def rms_norm(call: OnnxCall) -> Value:
    """Import RMS norm over the last axes."""
    x, scale = call.value(0), call.value(1)
    _, length = _rows(call, x)
    found = _over_all(call, scale, x)
    weights = graphc.full((length,), 1.0, scale.type.dtype) if found is None else found
    rows = graphc.reshape(x, (-1, length))
    guard = EpsilonAttributes(call.attribute("epsilon", 1e-5))
    y = graphc.reshape(apply(RmsNorm, rows, weights, attributes=guard).outputs[0], x.shape)
    return graphc.mul(y, scale) if found is None else y


@rule("GroupNormalization")
def group_norm(call: OnnxCall) -> Value:
    """Import group norm; before opset 21, it has one weight per group."""
    x, scale, bias = (call.value(i) for i in range(3))
    groups = call.required("num_groups")
    if scale.shape[0] == groups != x.shape[1]:
        scale, bias = (_repeated(w, x.shape[1] // groups) for w in (scale, bias))
    return _grouped(call, x, groups, scale, bias)


def _grouped(call: OnnxCall, x: Value, groups: int, scale: Value, bias: Value) -> Value:
    attributes = GroupNormAttributes(groups, call.attribute("epsilon", 1e-5))
    return apply(GroupNorm, x, scale, bias, attributes=attributes).outputs[0]


def _repeated(weight: Value, times: int) -> Value:
    each = graphc.reshape(weight, (-1, 1))
    return graphc.reshape(graphc.broadcast_to(each, (weight.shape[0], times)), (-1,))


@rule("InstanceNormalization")
def instance_norm(call: OnnxCall) -> Value:
    """Import instance norm as group norm with one channel per group."""
    x, scale, bias = (call.value(i) for i in range(3))
    return _grouped(call, x, x.shape[1], scale, bias)


@rule("LpNormalization")
def lp_norm(call: OnnxCall) -> Value:
    """Import LpNormalization: x divided by its norm along an axis; 0 if the norm is 0."""
    return graphc.normalize(call.value(0), call.attribute("p", 2), call.attribute("axis", -1))


@rule("LRN")
def local_response_norm(call: OnnxCall) -> Value:
    """Import local response normalization (Krizhevsky et al., 2012).

    It divides x by a power of the mean square over adjacent channels.
    """
    x, size = call.value(0), call.required("size")
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    if x.type.rank < 2:
        raise UnsupportedError(f"x must be (batch, channels, ...), got {x.type}")
    n, channels = x.shape[:2]
    squares = graphc.reshape(graphc.mul(x, x), (n, 1, channels, -1))
    before = (size - 1) // 2
    wide = graphc.pad(squares, ((0, 0), (0, 0), (before, size - 1 - before), (0, 0)))
    means = graphc.average_pool2d(wide, (size, 1), 1)
    factor = graphc.power(graphc.add(graphc.mul(means, alpha), call.attribute("bias", 1.0)), -beta)
    return graphc.mul(x, graphc.reshape(factor, x.shape))
