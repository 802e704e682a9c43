"""Optimizers: each adds update nodes to a graph, one a parameter.

A number as the learning rate is an input of the program with that number as its default:
``program.step(x=..., learning_rate=1e-4)`` changes it for one step. A `Schedule` is computed inside
the step from the step counter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from graphc.errors import OptionError, choose, no_attribute, number_between, whole_number
from graphc.ir import builder
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import DType, compute_dtype
from graphc.keywords import asks
from graphc.ops.elementwise import scale, shift
from graphc.ops.learning_rate import LEARNING_RATE_FORMS, LearningRate, LearningRateAttributes
from graphc.ops.update import (
    LARGEST,
    AdamAttributes,
    AdamCorrection,
    AdamUpdate,
    AdamwAttributes,
    AdamwUpdate,
    BetaAttributes,
    MomentumAttributes,
    MomentumUpdate,
    SgdAttributes,
    SgdUpdate,
)


class Updater(Protocol):
    """Adds the update of one parameter."""

    def update(self, parameter: State, gradient: Value) -> Node: ...


class Optimizer(Protocol):
    """Settings of an optimizer; `begin` adds what all updates of a step share, in that dtype."""

    def begin(self, dtype: DType) -> Updater: ...


LARGEST_FLOAT32 = 3.4028234663852886e38


@asks
@dataclass(frozen=True)
class Schedule:
    """A learning rate that follows the step counter.

    It rises linearly over `warmup` steps to `peak`, then goes ``constant``, ``linear``, ``cosine``
    (Loshchilov and Hutter, 2017) or ``exponential`` to `floor`, which it reaches at step `steps`
    and keeps.
    """

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0
    form: str = "cosine"

    def __post_init__(self) -> None:
        choose("schedule form", self.form, LEARNING_RATE_FORMS)
        peak = number_between("peak", self.peak, 0, LARGEST)
        number_between("floor", self.floor, 0, peak)
        steps, warmup = whole_number("steps", self.steps), whole_number("warmup", self.warmup, 0)
        if warmup >= steps:
            raise OptionError(f"warmup must be less than steps={steps}, got {warmup}")
        if self.form == "exponential" and not self.floor > 0:
            raise OptionError("an exponential schedule needs a floor above 0")


Rate = float | Schedule
"""A learning rate: a number, or what it follows."""


def _learning_rate(rate: Rate, dtype: DType) -> Value:
    if not isinstance(rate, Schedule):
        return builder.input("learning_rate", (), dtype, default=float(rate))
    steps, warmup = int(rate.steps), int(rate.warmup)
    numbers = (float(rate.peak), float(rate.floor), steps, warmup)
    attributes = LearningRateAttributes(rate.form, *numbers, dtype.name)
    return builder.apply(LearningRate, builder.STEP, attributes=attributes).output


def _check_rate(rate: Rate) -> None:
    if not isinstance(rate, Schedule):
        number_between("learning_rate", rate, 0, LARGEST)


def _moment(kind: str, parameter: State) -> State:
    """A moment like the parameter, in float32 where 16 bits would underflow."""
    dtype = compute_dtype(parameter.type.dtype)
    return builder.state(f"{kind}/{parameter.name}", parameter.shape, dtype, 0.0, "moment")


@asks
@dataclass(frozen=True)
class SGD:
    """w ← w - learning_rate · g, with momentum (classical) and L2 decay where asked for."""

    learning_rate: Rate = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.learning_rate)
        number_between("momentum", self.momentum, 0, 1)
        number_between("weight_decay", self.weight_decay, 0, LARGEST)

    def begin(self, dtype: DType) -> Updater:
        return _SgdUpdater(self, _learning_rate(self.learning_rate, dtype))


@dataclass(frozen=True)
class _SgdUpdater:
    settings: SGD
    rate: Value

    def update(self, parameter: State, gradient: Value) -> Node:
        settings = self.settings
        if settings.momentum == 0.0:
            sgd = SgdAttributes(settings.weight_decay)
            return builder.apply(SgdUpdate, parameter, gradient, self.rate, attributes=sgd)
        velocity = _moment("momentum", parameter)
        momentum = MomentumAttributes(settings.momentum, settings.weight_decay)
        operands = (parameter, velocity, gradient, self.rate)
        return builder.apply(MomentumUpdate, *operands, attributes=momentum)


def Momentum(learning_rate: Rate = 0.01, momentum: float = 0.9, weight_decay: float = 0.0) -> SGD:  # noqa: N802
    """SGD with classical momentum."""
    return SGD(learning_rate, momentum, weight_decay)


@asks
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015); `weight_decay` is L2, added to the gradient."""

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_adam(self)

    def begin(self, dtype: DType) -> Updater:
        attributes = AdamAttributes(self.beta1, self.beta2, self.epsilon, self.weight_decay)
        return _AdamUpdater(AdamUpdate, attributes, _corrections(self, dtype)[1])


@asks
@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self)

    def begin(self, dtype: DType) -> Updater:
        attributes = AdamwAttributes(self.beta1, self.beta2, self.epsilon)
        rate, numbers = _corrections(self, dtype)
        left = shift(scale(rate, -self.weight_decay), 1.0)
        return _AdamUpdater(AdamwUpdate, attributes, (*numbers, left))


def _check_adam(settings: Adam | AdamW) -> None:
    _check_rate(settings.learning_rate)
    number_between("weight_decay", settings.weight_decay, 0, LARGEST)
    number_between("beta1", settings.beta1, 0, 0.999999)
    number_between("beta2", settings.beta2, 0, 0.999999999)
    number_between("epsilon", settings.epsilon, 0, LARGEST)


def _corrections(settings: Adam | AdamW, dtype: DType) -> tuple[Value, tuple[Value, ...]]:
    """The learning rate, and the numbers that all of a step's updates share."""
    rate = _learning_rate(settings.learning_rate, dtype)
    betas = BetaAttributes(settings.beta1, settings.beta2)
    node = builder.apply(AdamCorrection, rate, builder.STEP, attributes=betas)
    return rate, node.outputs


@dataclass(frozen=True)
class _AdamUpdater:
    op: type[AdamUpdate] | type[AdamwUpdate]
    attributes: AdamAttributes | AdamwAttributes
    numbers: tuple[Value, ...]

    def update(self, parameter: State, gradient: Value) -> Node:
        m, v = _moment("adam/m", parameter), _moment("adam/v", parameter)
        operands = (parameter, m, v, gradient, *self.numbers)
        return builder.apply(self.op, *operands, attributes=self.attributes)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": AdamW,
}
"""The optimizers by their names on the command line."""


if not TYPE_CHECKING:  # a type checker knows the names, and would take this for all others

    def __getattr__(name: str) -> object:
        known = [kind.__name__ for kind in (Schedule, *OPTIMIZERS.values())]
        raise no_attribute(__name__, name, known)
