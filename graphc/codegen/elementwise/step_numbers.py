"""Rules of scalars of a step, computed in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import programs_of
from graphc.codegen.text.maps import own_operands
from graphc.codegen.text.operands import Places
from graphc.ir.expression import parse
from graphc.ir.graph import Node
from graphc.ir.types import float64
from graphc.ops.learning_rate import LearningRateAttributes

FALLING = {
    "constant": "peak",
    "linear": "peak + (floor - peak) * part",
    "cosine": "floor + (peak - floor) * (1 + cos(pi * part)) / 2",
    "exponential": "peak * (floor / peak) ** part",
}
"""The expression of the learning rate at a fraction of the schedule, by the form of the
schedule."""


def _in_float64(
    node: Node, places: Places, sources: Mapping[str, str], constants: Mapping[str, float]
) -> NodeCalls:
    """Return a program of expressions; intermediate values, which are not outputs, are float64."""
    inputs, outputs = own_operands(node, places)
    expressions = {name: parse(source).specialize(constants) for name, source in sources.items()}
    stored = {each.name for each in outputs}
    wide = {name: float64 for name in sources if name not in stored}
    return NodeCalls((Each(node.op.name, (), tuple(inputs), tuple(outputs), expressions, wide),))


@programs_of("adam_correction")
def _adam_correction(node: Node, places: Places) -> NodeCalls:
    sources = {
        "base": "learning_rate",
        "number": "step",
        "rate": "base / (1 - beta1 ** (number + 1))",
        "correction": "(1 - beta2 ** (number + 1)) ** -0.5",
    }
    betas = node.attributes
    return _in_float64(node, places, sources, {"beta1": betas.beta1, "beta2": betas.beta2})


@programs_of("learning_rate")
def _learning_rate(node: Node, places: Places) -> NodeCalls:
    a: LearningRateAttributes = node.attributes
    sources = {
        "number": "where(step < 0, 0, step)",
        "run": "(number - warmup) / length",
        "part": "where(run < 1, run, 1)",
        "rate": f"where(number < warmup, peak * (number + 1) / rise, {FALLING[a.form]})",
    }
    constants = {
        "peak": a.peak, "floor": a.floor, "warmup": a.warmup, "rise": max(1, a.warmup),
        "length": max(1, a.steps - a.warmup), "pi": math.pi,
    }  # fmt: skip
    return _in_float64(node, places, sources, {name: float(n) for name, n in constants.items()})
