"""Evaluation of a network on held-out batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from graphc.compiler.compile import compile
from graphc.ir.builder import trace
from graphc.ir.graph import Node, Value
from graphc.ops import reduce
from graphc.ops.choice import cast, equal, where
from graphc.ops.cross_entropy import SoftmaxCrossEntropy
from graphc.ops.linear_cross_entropy import CrossEntropyWithSlopes
from graphc.ops.order import argmax
from graphc.ops.row_cross_entropy import CrossEntropy


class Scores(NamedTuple):
    """The mean loss of held-out batches, and the fraction of labels that a classifier predicts."""

    loss: float
    accuracy: float | None


class Evaluation:
    """A program without an optimizer that computes `Scores` on the same batches at each call.

    A classifier is a network with exactly one cross entropy of logits and integer labels. Labels
    that the loss ignores do not count.
    """

    def __init__(
        self,
        loss: Value,
        batches: Callable[[], Iterable[Mapping[str, Any]]],
        options: Mapping[str, Any],
    ) -> None:
        """Compile the program; `options` are keyword arguments of `graphc.compile`."""
        self.batches = batches
        found = [node for node in trace({"loss": loss}).nodes if _is_classification(node)]
        self.is_classifier = len(found) == 1
        counts = _counts(found[0]) if self.is_classifier else {}
        self.program = compile(outputs={"loss": loss, **counts}, **options)

    def scores(self) -> Scores:
        """Compute the scores of the program's current states."""
        steps = list(self.program.steps(self.batches()))
        loss = _total(steps, "loss") / len(steps)
        if not self.is_classifier:
            return Scores(loss, None)
        return Scores(loss, _total(steps, "correct") / max(1.0, _total(steps, "counted")))


def _is_classification(node: Node) -> bool:
    return isinstance(node.op, SoftmaxCrossEntropy | CrossEntropy | CrossEntropyWithSlopes)


def _counts(node: Node) -> dict[str, Value]:
    """Return the values ``correct`` and ``counted`` of a classifier.

    The first is the number of rows whose largest logit is at the label; the second is the number of
    rows whose label is not ignored.
    """
    logits, labels = node.inputs[0], cast(node.inputs[1], "int64")
    is_plain = isinstance(node.op, SoftmaxCrossEntropy)
    ignored = () if is_plain else node.attributes.ignored
    counted = cast(equal(labels, labels), "float32")
    if ignored:
        counted = where(equal(labels, ignored[0]), 0.0, counted)
    correct = where(equal(argmax(logits, 1), labels), counted, 0.0)
    return {"correct": reduce.sum(correct), "counted": reduce.sum(counted)}


def _total(steps: Iterable[Mapping[str, Any]], name: str) -> float:
    return sum(float(step[name]) for step in steps)
