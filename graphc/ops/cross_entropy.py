"""Cross entropy of logits and class labels, row by row.

With default arguments it is one op that includes the mean. With class weights, an ignored label,
smoothing or another reduction, one op computes a loss per row, and other ops reduce these losses.
Both forms save only the probabilities, which may overwrite the logits.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, OptionError, ShapeError, choose, number_between
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import DType, TensorType, int64, normalize_axis
from graphc.ops.batch_total import batch_count
from graphc.ops.choice import cast, equal, greater, where
from graphc.ops.elementwise import add, div, float_dtype, mul, neg, scale, shift, sub
from graphc.ops.embedding import one_hot, require_integers
from graphc.ops.loss import REDUCTIONS, check_floats, reduced
from graphc.ops.reduce import sum
from graphc.ops.row_cross_entropy import CrossEntropy, CrossEntropyAttributes, label_weight
from graphc.ops.scatter import gather_nd
from graphc.ops.shape import AxisAttributes, full, reshape, transpose
from graphc.ops.softmax import SoftmaxGradient, log_softmax


class SoftmaxCrossEntropy(Op):
    """loss = mean over rows of -log softmax(logits)[label]; saves the probabilities.

    The probabilities may overwrite the logits, since the gradient does not use the logits.
    """

    name, inputs = "softmax_cross_entropy", ("logits", "labels")
    precision = "wide"
    outputs = ("loss", "probabilities")
    may_overwrite = {"probabilities": ("logits",)}
    any_strides = True

    def infer(
        self, attributes: Any, logits: TensorType, labels: TensorType
    ) -> tuple[TensorType, TensorType]:
        dtype = float_dtype(logits)
        require_integers(labels, "labels")
        if logits.rank != 2 or labels.shape != logits.shape[:1]:
            raise ShapeError(
                f"logits must be (rows, classes) and labels (rows,), got {logits} and {labels}; "
                "reshape other axes into rows"
            )
        return TensorType((), dtype), logits

    def gradient_logits(
        self,
        node: Node,
        dloss: Value | None,
        dprobabilities: Value | None,
        probabilities: Value,
        labels: Value,
    ) -> Value | None:
        """Return the gradient through the loss and, for second derivatives, the probabilities."""
        through_loss = through_rows = None
        if dloss is not None:
            node = apply(SoftmaxCrossEntropyGradient, probabilities, labels, dloss)
            through_loss = node.output
        if dprobabilities is not None:
            rows = AxisAttributes(1)
            node = apply(SoftmaxGradient, probabilities, dprobabilities, attributes=rows)
            through_rows = node.output
        if through_loss is not None and through_rows is not None:
            return add(through_loss, through_rows)
        return through_rows if through_loss is None else through_loss

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[1]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: labels' indices in flattened rows, twice, and two numbers per
        row."""
        logits = node.inputs[0].type
        row = logits.with_shape((logits.shape[0], 1))
        return (TensorType((2, logits.shape[0]), int64), row, row)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        logits: Array,
        labels: Array,
        *,
        loss: Array,
        probabilities: Array,
    ) -> None:
        places, row, chosen = record.scratch
        record(_places, labels, logits.shape[1], places)
        record(np.maximum.reduce, logits, 1, None, row, True)
        record(np.subtract, logits, row, out=probabilities)
        record(np.take, probabilities.reshape(-1), places[0], 0, chosen.reshape(-1), "clip")
        record(np.exp, probabilities, out=probabilities)
        record(np.add.reduce, probabilities, 1, None, row, True)
        record(np.divide, probabilities, row, out=probabilities)
        record(np.log, row, out=row)
        record(np.subtract, row, chosen, out=row)
        record(np.add.reduce, row, (0, 1), None, loss)
        record(np.divide, loss, float(logits.shape[0]), out=loss)


def _places(labels: Array, classes: int, places: Array) -> None:
    """Compute row · classes + label for each row into `places[0]`; `places[1]` is scratch."""
    flat, scratch = places
    scratch.fill(classes)
    scratch[0] = 0
    np.add.accumulate(scratch, out=flat)
    np.copyto(scratch, labels, casting="unsafe")
    np.add(flat, scratch, out=flat)


class SoftmaxCrossEntropyGradient(Op):
    """dlogits = (probabilities - one-hot labels) · dloss / rows."""

    name, inputs = "softmax_cross_entropy_gradient", ("probabilities", "labels", "dloss")
    outputs = ("dlogits",)
    may_overwrite = {"dlogits": ("probabilities",)}
    any_strides = True
    flops_per_element = 2

    def infer(
        self, attributes: Any, probabilities: TensorType, labels: TensorType, dloss: TensorType
    ) -> TensorType:
        float_dtype(probabilities, dloss)
        require_integers(labels, "labels")
        if probabilities.rank != 2 or labels.shape != probabilities.shape[:1] or dloss.shape:
            raise ShapeError(
                "probabilities must be (rows, classes), labels (rows,) and dloss a scalar, got "
                f"{probabilities}, {labels} and {dloss}"
            )
        return probabilities

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[1]

    def gradient_probabilities(self, node: Node, ddlogits: Value, dloss: Value) -> Value:
        return scale(mul(ddlogits, dloss), 1 / node.output.shape[0])

    def gradient_dloss(
        self, node: Node, ddlogits: Value, probabilities: Value, labels: Value
    ) -> Value:
        rows, classes = probabilities.shape
        error = sub(probabilities, one_hot(labels, classes, probabilities.type.dtype))
        return scale(sum(mul(ddlogits, error)), 1 / rows)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        type = node.output.type
        return (TensorType((2, type.shape[0]), int64), type.with_shape((type.shape[0],)))

    def kernel(
        self,
        record: Recorder,
        node: Node,
        probabilities: Array,
        labels: Array,
        dloss: Array,
        *,
        dlogits: Array,
    ) -> None:
        places, chosen = record.scratch
        flat = dlogits.reshape(-1)
        record(_places, labels, dlogits.shape[1], places)
        record(np.copyto, dlogits, probabilities)
        record(np.take, flat, places[0], 0, chosen, "clip")
        record(np.subtract, chosen, 1.0, out=chosen)
        record(np.put, flat, places[0], chosen, "clip")
        record(np.multiply, dlogits, dloss, out=dlogits)
        record(np.divide, dlogits, float(dlogits.shape[0]), out=dlogits)


# --- functions ---


def softmax_cross_entropy(
    logits: Value,
    labels: Value,
    *,
    ignore_index: int | None = None,
    weights: Value | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    axis: int = -1,
) -> Value:
    """Return the mean of `-log softmax(logits)[label]` over all labels, in nats: a scalar.

    `logits` are floats (..., classes), `labels` integers (...) from 0 to below `classes`. Running a
    step with other labels raises `FeedError`. `axis` selects another axis for the classes, such as
    1 for maps (batch, classes, height, width), and moves it to the end. Keywords have the meaning
    of those in ``torch.nn.functional.cross_entropy``, where the axis is always 1:

    - The label `ignore_index` may be any integer: its loss is 0, and its logits get no gradient.
    - `weights` is a value (classes,) by which the losses of each class are multiplied. It gets no
      gradient.
    - `label_smoothing`, from 0 to 1, is the part of each label that is spread over all classes.
    - `reduction` is "mean", "sum", or "none" for losses (...). The mean divides by the weights of
      the labels that are not ignored. If all are ignored, the mean and its gradients are 0 (torch
      returns NaN). In a step with several micro-batches (`accumulate`) or `ranks`, the mean or sum
      is over all their batches.

    `labels` may also be floats like the logits, as class probabilities. Then the mean divides by
    the number of distributions, and no label is ignored. Raises `ShapeError` if shapes do not fit,
    `DTypeError` for other dtypes, and `OptionError` for options out of range.
    """
    name = "softmax_cross_entropy"
    smoothing = number_between(f"{name}: label_smoothing", label_smoothing, 0, 1)
    choose(f"{name}: reduction", reduction, REDUCTIONS)
    ignored = ignored_label(name, ignore_index)
    given = () if weights is None else (as_value(f"{name}: weights", weights),)
    logits, labels = _classes_last(name, logits, labels, given, axis)
    classes = logits.shape[-1]
    if labels.type.dtype.kind == "float":
        if ignored:
            raise OptionError(
                f"{name}: ignore_index is not supported for labels that are probabilities"
            )
        losses = _of_probabilities(logits, labels, given, smoothing)
        return reduced(name, losses, reduction)
    rows, flat = reshape(logits, (-1, classes)), reshape(labels, (-1,))
    if reduction == "mean" and not (ignored or given or smoothing):
        return apply(SoftmaxCrossEntropy, rows, flat).outputs[0]
    attributes = CrossEntropyAttributes(smoothing, ignored)
    losses = apply(CrossEntropy, rows, flat, *given, attributes=attributes).outputs[0]
    return _mean_of_counted(name, losses, labels, classes, given, ignored, reduction)


def nll_loss(
    log_probabilities: Value,
    labels: Value,
    *,
    ignore_index: int | None = None,
    weights: Value | None = None,
    reduction: str = "mean",
    axis: int = -1,
) -> Value:
    """Return the mean of `-log_probabilities[label]` over all labels: a scalar.

    `log_probabilities` are floats (..., classes), for example from `log_softmax`. `labels` are
    integers (...). Keywords and errors are those of `softmax_cross_entropy`, which needs less
    memory than `log_softmax` followed by this op.
    """
    name = "nll_loss"
    choose(f"{name}: reduction", reduction, REDUCTIONS)
    ignored = ignored_label(name, ignore_index)
    given = () if weights is None else (as_value(f"{name}: weights", weights),)
    table, labels = _classes_last(name, log_probabilities, labels, given, axis)
    classes = table.shape[-1]
    if labels.type.dtype.kind != "int":
        raise DTypeError(f"{name}: labels must be integers, got {labels.type}")
    rows, flat = reshape(table, (-1, classes)), reshape(labels, (-1,))
    counts = [label_weight(flat, each, ignored) for each in given]
    if ignored:
        flat = cast(flat, int64)  # a dtype that can represent any ignored label
        skipped = equal(flat, ignored[0])
        picked = _picked(rows, where(skipped, full((), 0, int64), flat))
        picked = where(skipped, 0.0, picked)
    else:
        picked = _picked(rows, flat)
    losses = neg(functools.reduce(mul, counts, picked))
    return _mean_of_counted(name, losses, labels, classes, given, ignored, reduction)


def _picked(rows: Value, labels: Value) -> Value:
    """Return the element of each row at the index of its label."""
    return gather_nd(rows, reshape(labels, (-1, 1)), batch=1)


def ignored_label(name: str, given: object) -> tuple[int, ...]:
    """Return the ignored label in a tuple, empty for None.

    Raises `OptionError` if it is not an integer.
    """
    if given is None:
        return ()
    Whole(-(2**31), 2**31 - 1).check(f"{name}: ignore_index", given)
    return (int(given),)  # type: ignore[call-overload]


def _classes_last(
    name: str, table: Value, labels: Value, weights: tuple[Value, ...], axis: int
) -> tuple[Value, Value]:
    """Return a table with its classes moved to the last axis, and labels in the same layout.

    Raises `ShapeError` unless labels and weights fit the table.
    """
    shape, given = as_value(name, table).shape, as_value(f"{name}: labels", labels)
    check_floats(name, table)
    last = len(shape) - 1
    axis = normalize_axis(axis, len(shape), name)
    others = tuple(i for i in range(len(shape)) if i != axis)
    is_float = given.type.dtype.kind == "float"
    wanted = shape if is_float else tuple(shape[i] for i in others)
    if given.shape != wanted:
        raise ShapeError(
            f"{name}: labels of {table.type}, with classes on axis {axis}, must be integers "
            f"{[shape[i] for i in others]} or floats {list(shape)}, got {given.type}; set `axis` "
            "to the axis of the classes"
        )
    if any(value.shape != (shape[axis],) for value in weights):
        raise ShapeError(
            f"{name}: weights must have one number per class of {table.type}, ({shape[axis]},), "
            f"got {weights[0].type}"
        )
    if axis == last:
        return table, given
    order = (*others, axis)
    return transpose(table, order), transpose(given, order) if is_float else given


def _of_probabilities(
    logits: Value, labels: Value, weights: tuple[Value, ...], smoothing: float
) -> Value:
    """Return the cross entropy of each row of logits with labels that are class probabilities."""
    if smoothing:
        labels = shift(scale(labels, 1 - smoothing), smoothing / logits.shape[-1])
    for value in weights:
        labels = mul(labels, value)
    return neg(sum(mul(labels, log_softmax(logits)), -1))


def _mean_of_counted(
    name: str,
    losses: Value,
    labels: Value,
    classes: int,
    weights: tuple[Value, ...],
    ignored: tuple[int, ...],
    reduction: str,
) -> Value:
    """Reduce losses of rows.

    A mean divides by the sum of the weights of labels that are not ignored.
    """
    if reduction == "none":
        return reshape(losses, labels.shape)
    if reduction == "sum" or not (weights or ignored):
        return reduced(name, losses, reduction)
    return div(sum(losses), counted(labels, classes, weights, ignored, losses.type.dtype))


def counted(
    labels: Value, classes: int, weights: tuple[Value, ...], ignored: tuple[int, ...], dtype: DType
) -> Value:
    """Return the divisor of a mean: the sum of the weights of labels that are not ignored.

    If the sum is 0 without class weights, all losses are 0, and the divisor is 1. With class
    weights, smoothing adds losses of other classes, so the divisor is infinity, which makes the
    mean 0.
    """
    each = weights[0] if weights else full((classes,), 1.0, dtype)
    total = batch_count(sum(label_weight(labels, each, ignored)))
    return where(greater(total, 0.0), total, math.inf if weights else 1.0)
