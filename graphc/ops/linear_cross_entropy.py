"""A linear layer and the cross entropy of its output, in chunks of rows.

The logits are the largest tensor of a language model. For 16,384 tokens and 50,257 words they take
3.3 GB in float32, and their gradient takes as much. Only the loss uses them. The gradient of a sum
of losses can be computed as soon as the logits of its rows are known. So each chunk of rows
computes its losses and its part of the gradients, and then frees its logits. No matrix product is
computed twice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

from graphc.devices.device import Device
from graphc.errors import DTypeError, OptionError, ShapeError, choose, number_between, whole_number
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value, keep
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Recorder
from graphc.ir.types import TensorType, compute_dtype
from graphc.ops.batch_total import batch_sum
from graphc.ops.changed_state import Carrier
from graphc.ops.choice import cast
from graphc.ops.concat import concat, split
from graphc.ops.cross_entropy import counted, ignored_label
from graphc.ops.elementwise import Add, Elementwise, add, div, scale
from graphc.ops.matmul import affine, matmul
from graphc.ops.reduce import sum
from graphc.ops.row_cross_entropy import (
    CrossEntropy,
    CrossEntropyAttributes,
    CrossEntropyGradient,
    LabelOp,
    check_rows,
    row_scratch,
)
from graphc.ops.shape import reshape
from graphc.ops.stop_gradient import stop_gradient

WHOLE = "use softmax_cross_entropy(affine(...)), which has gradients of every order"
"""The fix that the error message for a second derivative suggests."""


class GradientSum(Add):
    """y = a + b, where b is one chunk's part of the gradient of a parameter.

    Mixed precision computes it in float32. A pass may fuse it with the matrix product that computes
    b.
    """

    name = "gradient_sum"
    precision = "wide"


class CarriedGradient(Elementwise):
    """y = slope · dy.

    It cannot be differentiated, since the slope is a gradient computed in advance.
    """

    name, inputs = "carried_gradient", ("slope", "dy")
    expression = "slope * dy"
    instead_of_gradient = {"slope": WHOLE, "dy": WHOLE}


@dataclass(frozen=True, slots=True)
class PaddedCrossEntropyAttributes(CrossEntropyAttributes):
    """The attributes of a cross entropy, and the number of columns after those of the classes.

    The logits there must be so low that the probabilities are 0.
    """

    padding: Annotated[int, Whole(0)] = 0


class CrossEntropyWithSlopes(LabelOp):
    """The cross entropy of each row of logits with its label, and the gradient of their sum.

    Losses and dlogits are those of `CrossEntropy` and `CrossEntropyGradient` for gradients of 1.
    Logits of 16 bits have losses in float32, and dlogits of 16 bits. There is no second derivative.
    """

    name, inputs = "cross_entropy_with_slopes", ("logits", "labels")
    outputs = ("losses", "dlogits")
    attributes = PaddedCrossEntropyAttributes
    precision = "follow"
    may_overwrite = {"dlogits": ("logits",)}
    any_strides = True
    flops_per_element = 0
    instead_of_gradient = {"logits": WHOLE}

    def infer(
        self, attributes: PaddedCrossEntropyAttributes, logits: TensorType, labels: TensorType
    ) -> tuple[TensorType, TensorType]:
        check_rows(logits, labels, (), attributes)
        if attributes.padding and attributes.padding >= logits.shape[1]:
            raise ShapeError(f"padding must leave classes in {logits}, got {attributes.padding}")
        if attributes.padding and attributes.smoothing:
            raise OptionError("smoothing would count the padding as classes; omit one of them")
        return labels.with_dtype(compute_dtype(logits.dtype)), logits

    def index_limit(self, node: Node) -> int:
        classes: int = node.inputs[0].shape[1] - node.attributes.padding
        return classes

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(16 * node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of both kernels, which share them."""
        found = row_scratch(node, numbers=4)
        if not node.attributes.smoothing:
            return found
        return (*found, node.inputs[0].type.with_shape((node.inputs[0].shape[1],)))

    def kernel(
        self,
        record: Recorder,
        node: Node,
        logits: Array,
        labels: Array,
        *,
        losses: Array,
        dlogits: Array,
    ) -> None:
        ones = record.scratch[2][3]
        CrossEntropy().kernel(record, node, logits, labels, losses=losses, probabilities=dlogits)
        record(ones.fill, 1)
        CrossEntropyGradient().kernel(record, node, dlogits, labels, ones, dlogits=dlogits)


class WithGradient(Carrier):
    """y = x, a scalar view of x that defines the gradient of x with respect to `by` as `slope`."""

    name, inputs = "with_gradient", ("x", "by", "slope")

    def infer(
        self, attributes: Any, x: TensorType, by: TensorType, slope: TensorType
    ) -> TensorType:
        if x.shape != () or by.shape != slope.shape:
            raise ShapeError(
                f"the slope of a scalar must have the shape of {by}, got {slope} of {x}"
            )
        return x

    def gradient_by(self, node: Node, dy: Value, slope: Value) -> Value:
        gradient = apply(CarriedGradient, slope, cast(dy, slope.type.dtype)).output
        return cast(gradient, node.inputs[1].type.dtype)

    def gradient_slope(self, node: Node) -> None:
        return None


def linear_cross_entropy(
    x: Value,
    weight: Value,
    labels: Value,
    *,
    bias: Value | None = None,
    chunks: int = 8,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Value:
    """Compute softmax_cross_entropy(affine(x, weight, bias), labels) in chunks of rows: a scalar.

    x is (..., inputs), `weight` (classes, inputs), `bias` (classes,) and `labels` integers (...).
    The rows are split into `chunks` equal parts, whose gradients are computed together with their
    losses. The logits, and all tensors of their shape, take the bytes of one chunk. There is no
    second derivative.

    Keywords have the meaning of those in `softmax_cross_entropy`, with the `reduction` "mean" or
    "sum". Raises `ShapeError` if shapes do not fit, `DTypeError` for labels that are not integers,
    and `OptionError` for options out of range or chunks that do not divide the rows.
    """
    name = "linear_cross_entropy"
    choose(f"{name}: reduction", reduction, ("mean", "sum"))
    smoothing = number_between(f"{name}: label_smoothing", label_smoothing, 0, 1)
    ignored = ignored_label(name, ignore_index)
    rows, flat = _rows_and_labels(name, x, labels)
    whole_number(f"{name}: chunks", chunks)
    if rows.shape[0] % chunks:
        raise OptionError(
            f"{name}: the number of rows must be a multiple of chunks, got {rows.shape[0]} rows "
            f"and {chunks} chunks"
        )
    attributes = CrossEntropyAttributes(smoothing, ignored)
    total = sum_of_losses(rows, weight, bias, flat, attributes, chunks)
    if reduction == "sum":
        return batch_sum(total)
    if ignored:
        return div(total, counted(flat, weight.shape[0], (), ignored, total.type.dtype))
    return scale(total, 1 / rows.shape[0])


def sum_of_losses(
    x: Value,
    weight: Value,
    bias: Value | None,
    labels: Value,
    attributes: CrossEntropyAttributes,
    chunks: int,
) -> Value:
    """Return the sum of the losses of x (rows, inputs) with `labels` (rows,), in equal chunks."""
    losses, slopes = [], []
    for part, own in zip(split(x, chunks), split(labels, chunks), strict=True):
        loss, slope = _chunk(part, weight, bias, own, attributes)
        losses.append(loss)
        slopes.append(slope)
    total = stop_gradient(functools.reduce(add, losses))
    by_rows, *by_parameters = zip(*slopes, strict=True)
    given = (x, weight) if bias is None else (x, weight, bias)
    gradients = (concat(by_rows), *(functools.reduce(_summed, each) for each in by_parameters))
    for value, gradient in zip(given, gradients, strict=True):
        # `keep` prevents rematerialization, which would repeat the products of all rows.
        total = apply(WithGradient, total, value, keep(gradient)).output
    return total


def _rows_and_labels(name: str, x: Value, labels: Value) -> tuple[Value, Value]:
    """Return x as (rows, inputs), and its labels as (rows,)."""
    as_value(f"{name}: x", x)
    if as_value(f"{name}: labels", labels).type.dtype.kind != "int":
        raise DTypeError(f"{name}: labels must be integers, got {labels.type}")
    if labels.shape != x.shape[:-1]:
        raise ShapeError(
            f"{name}: labels of {x.type} must have the shape {list(x.shape[:-1])}, got "
            f"{labels.type}"
        )
    return reshape(x, (-1, x.shape[-1])), reshape(labels, (-1,))


def _chunk(
    rows: Value,
    weight: Value,
    bias: Value | None,
    labels: Value,
    attributes: CrossEntropyAttributes,
) -> tuple[Value, tuple[Value, ...]]:
    """Return the sum of the losses of one chunk of rows, and its gradients.

    The gradients are those of the rows, the weight and, if there is one, the bias.
    """
    logits = affine(rows, weight, bias)
    given = PaddedCrossEntropyAttributes(attributes.smoothing, attributes.ignored)
    losses, slope = apply(CrossEntropyWithSlopes, logits, labels, attributes=given).outputs
    gradients = [matmul(slope, weight), matmul(slope, rows, transpose_a=True)]
    if bias is not None:
        gradients.append(sum(slope, 0))
    return sum(losses), tuple(gradients)


def _summed(total: Value, share: Value) -> Value:
    return apply(GradientSum, total, share).output
