"""Common parts of all optimizers: learning rates, their schedules, and moments of a parameter."""

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
    """The updates of parameters in one step; `update` adds the one of a parameter."""

    def update(self, parameter: State, gradient: Value) -> Node: ...


class Optimizer(Protocol):
    """Settings of an optimizer; `begin` adds what all updates of a step share, in that dtype.

    An optimizer sets `is_elementwise = True` if its update of an element depends only on that
    element of its operands. Ranks can then shard its states.
    """

    def begin(self, dtype: DType) -> Updater: ...


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {}
"""The optimizers by name; `graphc.optim` adds its own, which are also those of the command line."""


def optimizer_of(name: str, given: Optimizer | str) -> Optimizer:
    """Return an optimizer, given itself or its name in `OPTIMIZERS`, which means its defaults.

    Raises `OptionError` for an unknown name, and for other objects.
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
            raise OptionError("an exponential schedule needs a floor above 0")


Rate = float | Schedule
"""A learning rate: a number or a schedule."""


def learning_rate(rate: Rate, dtype: DType) -> Value:
    """Return the rate of a step; a number is the default of an input named inside the current
    scope."""
    if not isinstance(rate, Schedule):
        name = builder.scoped_name("learning_rate")
        return builder.input(name, (), dtype, default=float(rate))
    steps, warmup = int(rate.steps), int(rate.warmup)
    numbers = (float(rate.peak), float(rate.floor), steps, warmup)
    attributes = LearningRateAttributes(rate.form, *numbers, dtype.name)
    return builder.apply(LearningRate, builder.STEP, attributes=attributes).output


def left_of(rate: Value, weight_decay: float) -> Value:
    """Return the factor of a parameter in decoupled weight decay: 1 - rate · weight_decay."""
    return shift(scale(rate, -weight_decay), 1.0)


def check_rate(rate: Rate) -> None:
    """Raise `OptionError` unless `rate` is a schedule or a valid number."""
    if not isinstance(rate, Schedule):
        number_between("learning_rate", rate, 0, LARGEST)


def check_decay(weight_decay: float) -> None:
    """Raise `OptionError` unless `weight_decay` is a valid number."""
    number_between("weight_decay", weight_decay, 0, LARGEST)


def moment(kind: str, parameter: State, value: float = 0.0) -> State:
    """Return a moment of the parameter's shape, in float32 if 16 bits would underflow."""
    dtype = compute_dtype(parameter.type.dtype)
    found = builder.state(f"{kind}/{parameter.name}", parameter.shape, dtype, value, "moment")
    if isinstance(parameter.initial, Shard):
        return replace(found, initial=parameter.initial.moments(kind, Initial("constant", value)))
    return found
