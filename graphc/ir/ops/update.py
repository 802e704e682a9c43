"""Optimizer steps as ops: each replaces a parameter and its moments where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.ops.elementwise import Elementwise
from graphc.ir.types import TensorType


class Update(Elementwise):
    """Base: state inputs first; every output has the type of the state that it replaces."""

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        inputs = dict(zip(self.inputs, types, strict=True))
        return tuple(inputs[self.must_overwrite[output]] for output in self.outputs)


@dataclass(frozen=True, slots=True)
class SgdAttributes:
    """L2 weight decay, added to the gradient."""

    weight_decay: float


class SgdUpdate(Update):
    """w ← w - rate · (g + weight_decay · w)."""

    name, inputs = "sgd_update", ("w", "g", "rate")
    outputs = ("w_new",)
    attributes = SgdAttributes
    must_overwrite = {"w_new": "w"}
    expressions = {"w_new": "w - rate * (g + weight_decay * w)"}


@dataclass(frozen=True, slots=True)
class MomentumAttributes:
    """Factor of the old velocity, and L2 weight decay added to the gradient."""

    momentum: float
    weight_decay: float


class MomentumUpdate(Update):
    """v ← momentum · v + g + weight_decay · w;  w ← w - rate · v."""

    name, inputs = "momentum_update", ("w", "v", "g", "rate")
    outputs = ("v_new", "w_new")
    attributes = MomentumAttributes
    must_overwrite = {"v_new": "v", "w_new": "w"}
    expressions = {
        "v_new": "momentum * v + (g + weight_decay * w)",
        "w_new": "w - rate * v_new",
    }


@dataclass(frozen=True, slots=True)
class AdamAttributes:
    """Decay rates of the two moments, the guard against division by zero, and L2 decay."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float


class AdamUpdate(Update):
    """Adam (Kingma and Ba, 2015, Alg. 1) with the bias corrections given as two numbers.

    `rate` is learning_rate / (1 - β1ᵗ) and `correction` is 1 / √(1 - β2ᵗ).
    """

    name, inputs = "adam_update", ("w", "m", "v", "g", "rate", "correction")
    outputs = ("m_new", "v_new", "w_new")
    attributes = AdamAttributes
    must_overwrite = {"m_new": "m", "v_new": "v", "w_new": "w"}
    expressions = {
        "m_new": "beta1 * m + (1 - beta1) * (g + weight_decay * w)",
        "v_new": "beta2 * v + (1 - beta2) * (g + weight_decay * w) ** 2",
        "w_new": "w - rate * m_new / (sqrt(v_new) * correction + epsilon)",
    }


@dataclass(frozen=True, slots=True)
class AdamwAttributes:
    """Decay rates of the two moments, and the guard against division by zero."""

    beta1: float
    beta2: float
    epsilon: float


class AdamwUpdate(Update):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019): `decay` is the factor left of w."""

    name, inputs = "adamw_update", ("w", "m", "v", "g", "rate", "correction", "decay")
    outputs = ("m_new", "v_new", "w_new")
    attributes = AdamwAttributes
    must_overwrite = {"m_new": "m", "v_new": "v", "w_new": "w"}
    expressions = {
        "m_new": "beta1 * m + (1 - beta1) * g",
        "v_new": "beta2 * v + (1 - beta2) * g * g",
        "w_new": "w * decay - rate * m_new / (sqrt(v_new) * correction + epsilon)",
    }


@dataclass(frozen=True, slots=True)
class BetaAttributes:
    """Decay rates of Adam's two moments."""

    beta1: float
    beta2: float


class AdamCorrection(Op):
    """The two numbers of `AdamUpdate` for this step, computed in float64 and rounded once."""

    name, inputs = "adam_correction", ("learning_rate", "step")
    outputs = ("rate", "correction")
    attributes = BetaAttributes

    def infer(
        self, attributes: BetaAttributes, learning_rate: TensorType, step: TensorType
    ) -> tuple[TensorType, ...]:
        return (learning_rate,) * 2

    def kernel(
        self,
        record: Recorder,
        node: Node,
        learning_rate: Array,
        step: Array,
        *,
        rate: Array,
        correction: Array,
    ) -> None:
        record(_correct, node.attributes, learning_rate, step, rate, correction)


def _correct(
    betas: BetaAttributes, learning_rate: Array, step: Array, rate: Array, correction: Array
) -> None:
    count = step.item() + 1
    rate[()] = learning_rate.item() / (1 - betas.beta1**count)
    correction[()] = (1 - betas.beta2**count) ** -0.5


class Increment(Op):
    """A counter goes up by one."""

    name, inputs, outputs = "increment", ("count",), ("count_new",)
    must_overwrite = {"count_new": "count"}

    def infer(self, attributes: Any, count: TensorType) -> TensorType:
        return count

    def kernel(self, record: Recorder, node: Node, count: Array, *, count_new: Array) -> None:
        record(np.add, count, 1, out=count_new)
