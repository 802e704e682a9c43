"""Learning rate schedules computed from the step counter inside the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from graphc.errors import OptionError, ShapeError
from graphc.ir.attributes import Between, DTypeName, OneOf, Whole
from graphc.ir.graph import Node
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, as_dtype
from graphc.ops.update import LARGEST, is_counter

LEARNING_RATE_FORMS = ("constant", "linear", "cosine", "exponential")


@dataclass(frozen=True, slots=True)
class LearningRateAttributes:
    """A linear rise over `warmup` steps to `peak`, then `form` down to `floor` at step `steps`."""

    form: Annotated[str, OneOf(LEARNING_RATE_FORMS)]
    peak: Annotated[float, Between(0.0, LARGEST)]
    floor: Annotated[float, Between(0.0, LARGEST)]
    steps: Annotated[int, Whole(1)]
    warmup: Annotated[int, Whole(0)]
    dtype: Annotated[str, DTypeName("float")]

    def at(self, step: int) -> float:
        """Return the learning rate of step number `step`, counted from 0.

        Negative steps count as 0.
        """
        step = max(step, 0)
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
    """The learning rate of this step, computed in float64 and rounded once."""

    name, inputs, outputs = "learning_rate", ("step",), ("rate",)
    attributes = LearningRateAttributes

    def infer(self, attributes: LearningRateAttributes, step: TensorType) -> TensorType:
        a = attributes
        if a.floor > a.peak or a.warmup >= a.steps or (a.form == "exponential" and not a.floor):
            raise OptionError(
                "the floor must not exceed the peak, must be above 0 for the exponential form, "
                f"and warmup must be below steps; got {a}"
            )
        if not is_counter(step):
            raise ShapeError(f"step must be an integer scalar, got {step}")
        return TensorType((), as_dtype(attributes.dtype))

    def kernel(self, record: Recorder, node: Node, step: Array, *, rate: Array) -> None:
        record(_set_rate, node.attributes, step, rate)


def _set_rate(attributes: LearningRateAttributes, step: Array, rate: Array) -> None:
    np.copyto(rate, attributes.at(int(step)))
