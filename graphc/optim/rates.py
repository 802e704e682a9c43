"""Common parts of optimizers: protocols, learning rates and schedules, and moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from graphc.errors import OptionError, choose, number_between, quoted, whole_number
from graphc.ir import builder
from graphc.ir.graph import Initial, Node, State, Value
from graphc.ir.shards import Shard
from graphc.ir.types import DType, compute_dtype
from graphc.keywords import asks
from graphc.ops.elementwise import scale, shift
from graphc.ops.learning_rate import LEARNING_RATE_FORMS, LearningRate, LearningRateAttributes
from graphc.ops.update import LARGEST


class Updater(Protocol):
    """An optimizer inside one step; `update` adds the node that updates a parameter."""

    def update(self, parameter: State, gradient: Value) -> Node: ...


class Optimizer(Protocol):
    """The settings of an optimizer; `begin` starts the updates of a step.

    `begin` adds the values that all updates of a step share, such as the learning rate, as scalars
    of `dtype`. An optimizer sets `is_elementwise = True` if the update of an element depends only
    on that element of the parameter, gradient and moments. Ranks can then shard its states.
    """

    def begin(self, dtype: DType) -> Updater: ...


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {}
"""Name → optimizer class, for all optimizers of `graphc.optim` and of the command line."""


def optimizer_of(name: str, given: Optimizer | str) -> Optimizer:
    """Return a given optimizer, or the one with that name in `OPTIMIZERS`, with default settings.

    Raises `OptionError` for an unknown name or another object; `name` is the option in the message.
    """
    if isinstance(given, str):
        return OPTIMIZERS[choose("optimizer", given, tuple(OPTIMIZERS))]()
    if isinstance(given, type) or not hasattr(given, "begin"):
        raise OptionError(
            f"{name} must be an object such as graphc.optim.Adam(1e-3), or a name such as "
            f"'adam', got {quoted(given)}"
        )
    return given


def check_elementwise(optimizer: Optimizer) -> None:
    """Raise `OptionError` for an optimizer whose states cannot be sharded."""
    if not getattr(optimizer, "is_elementwise", False):
        raise OptionError(
            f"shard='states' updates shards of parameters, but {optimizer!r} needs whole "
            "parameters; choose SGD, Adam, AdamW, Adagrad, RMSProp or Lion, or omit shard. If "
            "your own optimizer is elementwise, set is_elementwise = True"
        )


@asks
@dataclass(frozen=True)
class Schedule:
    """A learning rate that follows the step counter.

    It rises linearly over `warmup` steps to `peak`. Then it follows the form ``constant``,
    ``linear``, ``cosine`` (Loshchilov and Hutter, 2017) or ``exponential`` to `floor`. It reaches
    `floor` at step `steps` and keeps it.
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
            raise OptionError(f"an exponential schedule needs a floor above 0, got {self.floor}")


Rate = float | Schedule
"""A learning rate: a number or a schedule."""


def learning_rate(rate: Rate, dtype: DType) -> Value:
    """Return the learning rate of a step as a scalar value.

    A number becomes the default of an input ``learning_rate`` in the current scope.
    """
    if not isinstance(rate, Schedule):
        name = builder.scoped_name("learning_rate")
        return builder.input(name, (), dtype, default=float(rate))
    steps, warmup = int(rate.steps), int(rate.warmup)
    numbers = (float(rate.peak), float(rate.floor), steps, warmup)
    attributes = LearningRateAttributes(rate.form, *numbers, dtype.name)
    return builder.apply(LearningRate, builder.STEP, attributes=attributes).output


def left_of(rate: Value, weight_decay: float) -> Value:
    """Return 1 - rate · weight_decay, by which decoupled weight decay multiplies a parameter."""
    return shift(scale(rate, -weight_decay), 1.0)


def check_rate(rate: Rate) -> None:
    """Raise `OptionError` unless `rate` is a schedule or a valid number."""
    if not isinstance(rate, Schedule):
        number_between("learning_rate", rate, 0, LARGEST)


def check_decay(weight_decay: float) -> None:
    """Raise `OptionError` unless `weight_decay` is a valid number."""
    number_between("weight_decay", weight_decay, 0, LARGEST)


def moment(kind: str, parameter: State, value: float = 0.0) -> State:
    """Return a moment of a parameter, filled with `value`: a state of the parameter's shape.

    The moment of a 16-bit parameter is float32, since 16 bits would underflow.
    """
    dtype = compute_dtype(parameter.type.dtype)
    found = builder.state(f"{kind}/{parameter.name}", parameter.shape, dtype, value, "moment")
    if isinstance(parameter.initial, Shard):
        return replace(found, initial=parameter.initial.moments(kind, Initial("constant", value)))
    return found
