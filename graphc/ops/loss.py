"""Losses: scalars to train on."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import ShapeError
from graphc.ir.builder import apply
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, int64
from graphc.ops.elementwise import add, float_dtype, mul, power, scale, sub
from graphc.ops.embedding import one_hot, require_integers
from graphc.ops.reduce import mean, sum
from graphc.ops.shape import AxisAttributes
from graphc.ops.softmax import SoftmaxGradient


class SoftmaxCrossEntropy(Op):
    """loss = mean over rows of -log softmax(logits)[label]; keeps the probabilities.

    The probabilities may lie over the logits: the gradient reads nothing else.
    """

    name, inputs = "softmax_cross_entropy", ("logits", "labels")
    precision = "wide"
    outputs = ("loss", "probabilities")
    may_overwrite = {"probabilities": ("logits",)}

    def infer(
        self, attributes: Any, logits: TensorType, labels: TensorType
    ) -> tuple[TensorType, TensorType]:
        dtype = float_dtype(logits)
        require_integers(labels, "labels")
        if logits.rank != 2 or labels.shape != logits.shape[:1]:
            raise ShapeError(
                f"logits are (rows, classes) and labels (rows,), got {logits} and {labels}; "
                "reshape further axes into rows"
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
        """Through the loss; a second derivative comes through the probabilities as well."""
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
        """The labels' places in the flattened rows, twice, and two numbers a row."""
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
    """Row · classes + label into places[0], for each row; places[1] is scratch."""
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
    flops_per_element = 2

    def infer(
        self, attributes: Any, probabilities: TensorType, labels: TensorType, dloss: TensorType
    ) -> TensorType:
        float_dtype(probabilities, dloss)
        require_integers(labels, "labels")
        if probabilities.rank != 2 or labels.shape != probabilities.shape[:1] or dloss.shape:
            raise ShapeError(
                f"probabilities are (rows, classes), labels (rows,) and dloss a scalar, got "
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


def softmax_cross_entropy(logits: Value, labels: Value) -> Value:
    """Mean over rows of -log softmax(logits)[label], in nats: a scalar.

    `logits` are floats (rows, classes), `labels` integers (rows,) from 0 to below `classes`; a step
    that is fed others raises `FeedError`. Raises `ShapeError` for other shapes: reshape further
    axes into rows.
    """
    return apply(SoftmaxCrossEntropy, logits, labels).outputs[0]


def mse(prediction: Value, target: Value) -> Value:
    """Mean over all elements of (prediction - target)², a scalar; the two broadcast."""
    return mean(power(sub(prediction, target), 2.0))
