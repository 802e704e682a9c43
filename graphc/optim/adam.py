"""Adam, and optimizers that use the same two moments: AdamW and LAMB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphc.errors import number_between
from graphc.ir import builder
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import DType
from graphc.keywords import asks
from graphc.ops.choice import cast, greater, where
from graphc.ops.elementwise import div, sqrt
from graphc.ops.optimizer_update import (
    LambAttributes,
    LambDirection,
    LambDirectionAttributes,
    LambUpdate,
)
from graphc.ops.reduce import square_sum
from graphc.ops.shape import full
from graphc.ops.update import (
    LARGEST,
    AdamAttributes,
    AdamCorrection,
    AdamUpdate,
    AdamwAttributes,
    AdamwUpdate,
    BetaAttributes,
)
from graphc.optim.rates import (
    Rate,
    Updater,
    check_decay,
    check_rate,
    learning_rate,
    left_of,
    moment,
)


@asks
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015); `weight_decay` is L2, added to the gradient."""

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_adam(self)

    def begin(self, dtype: DType) -> Updater:
        attributes = AdamAttributes(self.beta1, self.beta2, self.epsilon, self.weight_decay)
        rate = learning_rate(self.learning_rate, dtype)
        return _AdamUpdater(AdamUpdate, attributes, _corrections(self, rate))


@asks
@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_adam(self)

    def begin(self, dtype: DType) -> Updater:
        return self.at(learning_rate(self.learning_rate, dtype))

    def at(self, rate: Value) -> Updater:
        """Return the updater for a step with the learning rate `rate`."""
        attributes = AdamwAttributes(self.beta1, self.beta2, self.epsilon)
        numbers = _corrections(self, rate)
        return _AdamUpdater(AdamwUpdate, attributes, (*numbers, left_of(rate, self.weight_decay)))


@asks
@dataclass(frozen=True)
class LAMB:
    """LAMB (You et al., 2020): AdamW's direction, scaled to the norm of the parameter.

    The direction, weight decay included, is multiplied by the norm of the parameter over the norm
    of the direction. The factor is 1 if one of the norms is 0.
    """

    learning_rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self)

    def begin(self, dtype: DType) -> Updater:
        rate = learning_rate(self.learning_rate, dtype)
        return _LambUpdater(self, rate, _corrections(self, full((), 1.0, dtype)))


def _check_adam(settings: Adam | AdamW | LAMB) -> None:
    check_rate(settings.learning_rate)
    check_decay(settings.weight_decay)
    number_between("beta1", settings.beta1, 0, 0.999999)
    number_between("beta2", settings.beta2, 0, 0.999999999)
    number_between("epsilon", settings.epsilon, 0, LARGEST)


def _corrections(settings: Adam | AdamW | LAMB, rate: Value) -> tuple[Value, ...]:
    """Return the bias corrections that all updates of a step share, see `AdamCorrection`."""
    betas = BetaAttributes(settings.beta1, settings.beta2)
    return builder.apply(AdamCorrection, rate, builder.STEP, attributes=betas).outputs


@dataclass(frozen=True)
class _AdamUpdater:
    op: type[AdamUpdate] | type[AdamwUpdate]
    attributes: AdamAttributes | AdamwAttributes
    numbers: tuple[Value, ...]

    def update(self, parameter: State, gradient: Value) -> Node:
        m, v = moment("adam/m", parameter), moment("adam/v", parameter)
        operands = (parameter, m, v, gradient, *self.numbers)
        return builder.apply(self.op, *operands, attributes=self.attributes)


@dataclass(frozen=True)
class _LambUpdater:
    settings: LAMB
    rate: Value
    corrections: tuple[Value, ...]

    def update(self, parameter: State, gradient: Value) -> Node:
        s, (m, v) = self.settings, (moment("lamb/m", parameter), moment("lamb/v", parameter))
        numbers = LambDirectionAttributes(s.beta1, s.beta2, s.epsilon, s.weight_decay)
        operands = (parameter, m, v, gradient)
        node = builder.apply(LambDirection, *operands, *self.corrections, attributes=numbers)
        trust = self.trust(parameter, node.output)
        betas = LambAttributes(s.beta1, s.beta2)
        return builder.apply(LambUpdate, *operands, node.output, self.rate, trust, attributes=betas)

    def trust(self, parameter: Value, direction: Value) -> Value:
        """Return the norm of the parameter over the norm of its direction.

        1 if one of the norms is 0.
        """
        dtype = self.rate.type.dtype
        own, other = (sqrt(cast(square_sum(x), dtype)) for x in (parameter, direction))
        is_there = greater(other, 0.0)
        ratio = div(own, where(is_there, other, 1.0))
        return where(greater(own, 0.0), where(is_there, ratio, 1.0), 1.0)
