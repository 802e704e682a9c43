"""Export of norms and of dropout, which like batch norm depends on training."""

from __future__ import annotations

from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, float32, float64
from graphc.onnx.emission import Emission, Emitted, exports


@exports("layer_norm")
def _layer_norm(node: Node, on: Emission, x: str, scale: str, bias: str) -> Emitted:
    dtype, wide = node.inputs[0].type.dtype, node.inputs[1].type.dtype
    epsilon, x = node.attributes.epsilon, on.cast(x, dtype, wide)
    if wide == float64:  # the statistics of ONNX's op are float32
        y, *statistics = _normalised(on, x, epsilon, wide)
        y = on("Add", on("Mul", y, scale), bias)
    else:
        y, *statistics = on.several(
            "LayerNormalization", [x, scale, bias], 3, axis=-1, epsilon=epsilon
        )
        y = on.cast(y, wide, dtype)
    rest = zip(statistics, node.outputs[1:], strict=True)
    return [y, *(_shaped(on, name, value) if value in on.read else None for name, value in rest)]


def _shaped(on: Emission, name: str, value: Value) -> str:
    return on("Reshape", name, on.integers(*value.shape))


def _normalised(on: Emission, x: str, epsilon: float, dtype: DType) -> tuple[str, str, str]:
    """Normalize x over its last axis; also return the mean and the inverse standard deviation."""
    mean = on("ReduceMean", x, on.integers(-1))
    centred = on("Sub", x, mean)
    inverse = _inverse_root(on, centred, epsilon, dtype)
    return on("Mul", centred, inverse), mean, inverse


def _inverse_root(on: Emission, x: str, epsilon: float, dtype: DType) -> str:
    """Emit 1 / √(mean(x²) + epsilon) over the last axis."""
    square = on("ReduceMean", on("Mul", x, x), on.integers(-1))
    return on("Reciprocal", on("Sqrt", on("Add", square, on.number(epsilon, dtype))))


@exports("group_norm")
def _group_norm(node: Node, on: Emission, x: str, scale: str, bias: str) -> Emitted:
    dtype, wide = node.inputs[0].type.dtype, node.inputs[1].type.dtype
    a, x, shape = node.attributes, on.cast(x, dtype, wide), node.inputs[0].shape
    if wide != float64:
        y = on("GroupNormalization", x, scale, bias, num_groups=a.groups, epsilon=a.epsilon)
        return [on.cast(y, wide, dtype), None, None]
    rows = on("Reshape", x, on.integers(shape[0], a.groups, -1))
    y, _, _ = _normalised(on, rows, a.epsilon, wide)
    y = on("Reshape", y, on.integers(*shape))
    channels = on.integers(shape[1], *[1] * (len(shape) - 2))
    scale, bias = (on("Reshape", each, channels) for each in (scale, bias))
    return [on("Add", on("Mul", y, scale), bias), None, None]


@exports("rms_norm")
def _rms_norm(node: Node, on: Emission, x: str, scale: str) -> Emitted:
    dtype, wide = node.inputs[0].type.dtype, node.outputs[1].type.dtype
    x = on.cast(x, dtype, wide)
    inverse = _inverse_root(on, x, node.attributes.epsilon, wide)
    y = on("Mul", on("Mul", x, inverse), on.cast(scale, node.inputs[1].type.dtype, wide))
    return [on.cast(y, wide, dtype), inverse]


@exports("batch_norm")
def _batch_norm(node: Node, on: Emission, *operands: str) -> Emitted:
    a, outputs = node.attributes, 3 if on.training else 1
    y, *_ = on.several(
        "BatchNormalization", operands, outputs, epsilon=a.epsilon, momentum=1 - a.momentum,
        training_mode=int(on.training),
    )  # fmt: skip
    return [y, None, None]


@exports("dropout")
def _dropout(node: Node, on: Emission, x: str, seed: str, step: str) -> str:
    return dropped(on, x, node.attributes.rate, node.attributes.stream)


def dropped(on: Emission, x: str, rate: float, stream: int) -> str:
    """Emit dropout; it drops only in a file for training."""
    return on("Dropout", x, on.number(rate, float32), on.truth(on.training), seed=stream)
