"""Cross entropy with a loss per row, class weights, an ignored label and label smoothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from graphc.devices.device import Device
from graphc.errors import OptionError, ShapeError
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import apply
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder, Treatment
from graphc.ir.types import TensorType, bool_, int64
from graphc.ops.elementwise import add, float_dtype, mul, scale
from graphc.ops.embedding import require_integers
from graphc.ops.reduce import sum
from graphc.ops.shape import AxisAttributes, full, reshape
from graphc.ops.softmax import SoftmaxGradient

Ignored = Annotated[tuple[int, ...], Whole(-(2**31), 2**31 - 1)]
"""The label of ignored rows, in a tuple; empty if no label is ignored."""


@dataclass(frozen=True, slots=True)
class CrossEntropyAttributes:
    """The part of a label that is spread over all classes, and the label of ignored rows."""

    smoothing: Annotated[float, Between(0.0, 1.0)] = 0.0
    ignored: Ignored = ()


def _check_ignored(ignored: tuple[int, ...]) -> None:
    if len(ignored) > 1:
        raise OptionError(f"at most one label can be ignored, got {ignored}")


def check_rows(
    table: TensorType,
    labels: TensorType,
    weights: tuple[TensorType, ...],
    attributes: CrossEntropyAttributes,
) -> None:
    """Raise an error unless labels and class weights fit a table (rows, classes)."""
    require_integers(labels, "labels")
    _check_ignored(attributes.ignored)
    if table.rank != 2 or labels.shape != table.shape[:1]:
        raise ShapeError(f"labels of {table}, (rows, classes), must be (rows,), got {labels}")
    if len(weights) > 1 or any(w.shape != table.shape[1:] for w in weights):
        raise ShapeError(f"weights must have one number per class of {table}, got {weights}")
    float_dtype(table, *weights)


class LabelOp(Op):
    """Base of ops on labels: integers that number classes, and optionally one ignored label."""

    indices = ("labels",)
    precision: ClassVar[Treatment] = "wide"
    instead_of_gradient = {"weights": "pass class weights through graphc.stop_gradient"}

    def ignored_index(self, node: Node) -> int | None:
        ignored: tuple[int, ...] = node.attributes.ignored
        return ignored[0] if ignored else None


class CrossEntropy(LabelOp):
    """The cross entropy of each row of logits with its label, weighted and smoothed.

    losses[i] = -w[label] · (1 - smoothing) · log p[i, label] - smoothing / classes · sum(w · log
    p[i]), with p = softmax(logits) and class weights w. The loss of an ignored label is 0.
    """

    name, inputs = "cross_entropy", ("logits", "labels", "*weights")
    outputs = ("losses", "probabilities")
    attributes = CrossEntropyAttributes
    may_overwrite = {"probabilities": ("logits",)}
    any_strides = True
    needs_contiguous = ("weights",)
    flops_per_element = 0

    def infer(
        self,
        attributes: CrossEntropyAttributes,
        logits: TensorType,
        labels: TensorType,
        *weights: TensorType,
    ) -> tuple[TensorType, TensorType]:
        check_rows(logits, labels, weights, attributes)
        return logits.with_shape(labels.shape), logits

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[1]

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        return Cost(12 * node.inputs[0].type.elements, moved.bytes_read, moved.bytes_written)

    def gradient_logits(
        self,
        node: Node,
        dlosses: Value | None,
        dprobabilities: Value | None,
        probabilities: Value,
        labels: Value,
        weights: tuple[Value, ...],
    ) -> Value | None:
        """Return the gradient through the losses and, for second derivatives, the probabilities."""
        parts = []
        if dlosses is not None:
            given = (probabilities, labels, dlosses, *weights)
            parts.append(apply(CrossEntropyGradient, *given, attributes=node.attributes).output)
        if dprobabilities is not None:
            rows = AxisAttributes(1)
            operands = (probabilities, dprobabilities)
            parts.append(apply(SoftmaxGradient, *operands, attributes=rows).output)
        return add(*parts) if len(parts) == 2 else parts[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of the kernel.

        They are indices in the flattened rows, twice, the mask of ignored rows, four numbers per
        row, and the sum of class weights. The four numbers are the maximum (later the logarithm of
        the sum), the label's term, the label's weight, and the sum over all classes.
        """
        return row_scratch(node, numbers=4)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        logits: Array,
        labels: Array,
        *weights: Array,
        losses: Array,
        probabilities: Array,
    ) -> None:
        smoothing = node.attributes.smoothing
        places, skipped, rows, total, *_ = record.scratch
        row, chosen, factor, spread = (number[:, None] for number in rows)
        _record_skipped(record, labels, node.attributes.ignored, skipped)
        record(_counted_places, labels, logits.shape[1], places, skipped)
        record(np.maximum.reduce, logits, 1, None, row, True)
        record(np.subtract, logits, row, out=probabilities)
        record(np.take, probabilities.reshape(-1), places[0], 0, rows[1], "clip")
        if smoothing and weights:
            record(np.matmul, probabilities, weights[0], out=rows[3])
        elif smoothing:
            record(np.add.reduce, probabilities, 1, None, spread, True)
        record(np.exp, probabilities, out=probabilities)
        record(np.add.reduce, probabilities, 1, None, row, True)
        record(np.divide, probabilities, row, out=probabilities)
        record(np.log, row, out=row)
        record(np.subtract, row, chosen, out=chosen)
        if weights:
            record(np.take, weights[0], places[1], 0, rows[2], "clip")
            record(np.multiply, chosen, factor, out=chosen)
        record(np.multiply, rows[1], 1 - smoothing, out=losses)
        if smoothing:
            _record_weight(record, weights, logits.shape[1], total)
            record(np.multiply, row, total, out=row)
            record(np.subtract, row, spread, out=row)
            record(np.multiply, row, smoothing / logits.shape[1], out=row)
            record(np.add, losses, rows[0], out=losses)
        record(np.copyto, losses, 0, where=skipped)


def row_scratch(node: Node, numbers: int) -> tuple[TensorType, ...]:
    """Return the scratch types of a cross entropy, with this count of numbers per row."""
    table = node.inputs[0].type
    rows = table.shape[0]
    return (
        TensorType((2, rows), int64),
        TensorType((rows,), bool_),
        table.with_shape((numbers, rows)),
        table.with_shape(()),
    )


def _record_skipped(
    record: Recorder, labels: Array, ignored: tuple[int, ...], skipped: Array
) -> None:
    """Compute the mask of ignored labels."""
    if ignored:
        record(np.equal, labels, ignored[0], out=skipped)
    else:
        record(skipped.fill, False)


def _counted_places(labels: Array, classes: int, places: Array, skipped: Array) -> None:
    """Compute row · classes + label into `places[0]`, and copy labels to `places[1]`.

    Ignored labels are replaced by 0.
    """
    flat, safe = places
    safe.fill(classes)
    safe[0] = 0
    np.add.accumulate(safe, out=flat)
    np.copyto(safe, labels, casting="unsafe")
    np.copyto(safe, 0, where=skipped)
    np.add(flat, safe, out=flat)


def _record_weight(
    record: Recorder, weights: tuple[Array, ...], classes: int, total: Array
) -> None:
    """Compute the sum of the weights of all classes."""
    if weights:
        record(np.add.reduce, weights[0], 0, None, total)
    else:
        record(total.fill, classes)


class CrossEntropyGradient(LabelOp):
    """The gradient of the logits, computed from the gradient of each row's loss.

    dlogits[i] = dlosses[i] · (p[i] · (a + sum(b)) - a · one-hot label - b), where p are the
    probabilities, a = w[label] · (1 - smoothing) and b = w · smoothing / classes. It is 0 for an
    ignored label.
    """

    name, inputs = "cross_entropy_gradient", ("probabilities", "labels", "dlosses", "*weights")
    outputs = ("dlogits",)
    attributes = CrossEntropyAttributes
    may_overwrite = {"dlogits": ("probabilities",)}
    any_strides = True
    needs_contiguous = ("weights",)
    flops_per_element = 4

    def infer(
        self,
        attributes: CrossEntropyAttributes,
        probabilities: TensorType,
        labels: TensorType,
        dlosses: TensorType,
        *weights: TensorType,
    ) -> TensorType:
        check_rows(probabilities, labels, weights, attributes)
        float_dtype(probabilities, dlosses)
        if dlosses.shape != labels.shape:
            raise ShapeError(
                f"dlosses must have one number per row of {probabilities}, got {dlosses}"
            )
        return probabilities

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[1]

    def gradient_probabilities(
        self, node: Node, ddlogits: Value, labels: Value, dlosses: Value, weights: tuple[Value, ...]
    ) -> Value:
        """Return ddlogits · dlosses · (a + sum(b)) per row, with a and b of the class docstring."""
        smoothing, classes = node.attributes.smoothing, ddlogits.shape[1]
        ones, ignored = full((classes,), 1.0, ddlogits.type.dtype), node.attributes.ignored
        factor = label_weight(labels, weights[0] if weights else ones, ignored)
        if weights and smoothing:
            counts = label_weight(labels, ones, ignored)
            spread = mul(counts, scale(sum(weights[0]), smoothing / classes))
            factor = add(scale(factor, 1 - smoothing), spread)
        return mul(ddlogits, reshape(mul(factor, dlosses), (-1, 1)))

    def gradient_dlosses(
        self,
        node: Node,
        ddlogits: Value,
        probabilities: Value,
        labels: Value,
        weights: tuple[Value, ...],
    ) -> Value:
        ones = full(labels.shape, 1.0, ddlogits.type.dtype)
        operands = (probabilities, labels, ones, *weights)
        slopes = apply(CrossEntropyGradient, *operands, attributes=node.attributes).output
        return sum(mul(ddlogits, slopes), 1)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of the kernel.

        They are indices in the flattened rows, twice, the mask of ignored rows, three numbers per
        row, and the sum of class weights. The three numbers are a + sum(b), a, and the element at
        the label, with a and b as in the class docstring. With smoothing, b follows, one number per
        class.
        """
        found = row_scratch(node, numbers=3)
        if not node.attributes.smoothing:
            return found
        return (*found, node.inputs[0].type.with_shape((node.inputs[0].shape[1],)))

    def kernel(
        self,
        record: Recorder,
        node: Node,
        probabilities: Array,
        labels: Array,
        dlosses: Array,
        *weights: Array,
        dlogits: Array,
    ) -> None:
        a, classes = node.attributes, dlogits.shape[1]
        places, skipped, (factor, own, chosen, *_), total, *spread = record.scratch
        flat = dlogits.reshape(-1)
        _record_skipped(record, labels, a.ignored, skipped)
        record(_counted_places, labels, classes, places, skipped)
        if weights:
            record(np.take, weights[0], places[1], 0, own, "clip")
        else:
            record(own.fill, 1)
        record(np.multiply, own, 1 - a.smoothing, out=own)
        if a.smoothing:
            _record_weight(record, weights, classes, total)
            record(np.multiply, total, a.smoothing / classes, out=total)
            record(np.add, own, total, out=factor)
        else:
            record(np.copyto, factor, own)
        record(np.multiply, probabilities, factor[:, None], out=dlogits)
        record(np.take, flat, places[0], 0, chosen, "clip")
        record(np.subtract, chosen, own, out=chosen)
        record(np.put, flat, places[0], chosen, "clip")
        if spread:
            (part,) = spread
            record(np.copyto, part, weights[0] if weights else 1)
            record(np.multiply, part, a.smoothing / classes, out=part)
            record(np.subtract, dlogits, part, out=dlogits)
        record(np.multiply, dlogits, dlosses[:, None], out=dlogits)
        record(np.copyto, dlogits, 0, where=skipped[:, None])


@dataclass(frozen=True, slots=True)
class LabelWeightAttributes:
    """The label of ignored rows."""

    ignored: Ignored = ()


class LabelWeight(LabelOp):
    """y = the weight of each label's class; 0 if the label is ignored."""

    name, inputs = "label_weight", ("labels", "weights")
    attributes = LabelWeightAttributes
    needs_contiguous = ("weights",)

    def infer(
        self, attributes: LabelWeightAttributes, labels: TensorType, weights: TensorType
    ) -> TensorType:
        require_integers(labels, "labels")
        _check_ignored(attributes.ignored)
        if weights.rank != 1:
            raise ShapeError(f"weights must have one number per class, (classes,), got {weights}")
        return labels.with_dtype(float_dtype(weights))

    def index_limit(self, node: Node) -> int:
        return node.inputs[1].shape[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: labels as NumPy's lookup integers, and the mask of ignored
        ones."""
        labels = node.inputs[0].type
        return labels.with_dtype(int64), labels.with_dtype(bool_)

    def kernel(
        self, record: Recorder, node: Node, labels: Array, weights: Array, *, y: Array
    ) -> None:
        safe, skipped = record.scratch
        _record_skipped(record, labels, node.attributes.ignored, skipped)
        record(np.copyto, safe, labels, casting="unsafe")
        record(np.copyto, safe, 0, where=skipped)
        record(np.take, weights, safe, 0, y, "clip")
        record(np.copyto, y, 0, where=skipped)


def label_weight(labels: Value, weights: Value, ignored: tuple[int, ...]) -> Value:
    """Return the weight of each label's class, 0 for an ignored label."""
    return apply(LabelWeight, labels, weights, attributes=LabelWeightAttributes(ignored)).output
