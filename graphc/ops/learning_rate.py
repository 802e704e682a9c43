"""Learning rates that follow the step counter, computed inside the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Node
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, as_dtype

LEARNING_RATE_FORMS = ("constant", "linear", "cosine", "exponential")


@dataclass(frozen=True, slots=True)
class LearningRateAttributes:
    """A linear rise over `warmup` steps to `peak`, then `form` down to `floor` at step `steps`."""

    form: str
    peak: float
    floor: float
    steps: int
    warmup: int
    dtype: str

    def at(self, step: int) -> float:
        """The rate of step number `step`, from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        part = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        match self.form:
            case "linear":
                return self.peak + (self.floor - self.peak) * part
            case "cosine":
                return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * part)) / 2
            case "exponential":
                return float(self.peak * (self.floor / self.peak) ** part)
        return self.peak


class LearningRate(Op):
    """The rate of this step, computed in float64 and rounded once."""

    name, inputs, outputs = "learning_rate", ("step",), ("rate",)
    attributes = LearningRateAttributes

    def infer(self, attributes: LearningRateAttributes, step: TensorType) -> TensorType:
        return TensorType((), as_dtype(attributes.dtype))

    def kernel(self, record: Recorder, node: Node, step: Array, *, rate: Array) -> None:
        record(_set_rate, node.attributes, step, rate)


def _set_rate(attributes: LearningRateAttributes, step: Array, rate: Array) -> None:
    np.copyto(rate, attributes.at(int(step)))
