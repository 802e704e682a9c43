"""Optimizers that follow the gradient or a scaled form of it: SGD, Adagrad, RMSProp and Lion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphc.errors import OptionError, number_between
from graphc.ir import builder
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import DType
from graphc.keywords import asks
from graphc.ops.optimizer_update import (
    AdagradAttributes,
    AdagradUpdate,
    CenteredRmspropMomentumUpdate,
    CenteredRmspropUpdate,
    LionAttributes,
    LionUpdate,
    NesterovUpdate,
    RmspropAttributes,
    RmspropMomentumAttributes,
    RmspropMomentumUpdate,
    RmspropUpdate,
)
from graphc.ops.update import (
    LARGEST,
    MomentumAttributes,
    MomentumUpdate,
    SgdAttributes,
    SgdUpdate,
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
class SGD:
    """w ← w - learning_rate · g, optionally with momentum and L2 decay.

    Momentum is classical, or Nesterov's, which needs a momentum above 0.
    """

    learning_rate: Rate = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        number_between("momentum", self.momentum, 0, 1)
        check_decay(self.weight_decay)
        if self.nesterov and self.momentum == 0.0:
            raise OptionError(
                f"nesterov needs a momentum above 0, such as momentum=0.9, got {self.momentum}"
            )

    def begin(self, dtype: DType) -> Updater:
        return _SgdUpdater(self, learning_rate(self.learning_rate, dtype))


@dataclass(frozen=True)
class _SgdUpdater:
    settings: SGD
    rate: Value

    def update(self, parameter: State, gradient: Value) -> Node:
        settings = self.settings
        if settings.momentum == 0.0:
            sgd = SgdAttributes(settings.weight_decay)
            return builder.apply(SgdUpdate, parameter, gradient, self.rate, attributes=sgd)
        velocity = moment("momentum", parameter)
        momentum = MomentumAttributes(settings.momentum, settings.weight_decay)
        operands = (parameter, velocity, gradient, self.rate)
        op = NesterovUpdate if settings.nesterov else MomentumUpdate
        return builder.apply(op, *operands, attributes=momentum)


def Momentum(learning_rate: Rate = 0.01, momentum: float = 0.9, weight_decay: float = 0.0) -> SGD:  # noqa: N802
    """Return SGD with classical momentum."""
    return SGD(learning_rate, momentum, weight_decay)


def Nesterov(learning_rate: Rate = 0.01, momentum: float = 0.9, weight_decay: float = 0.0) -> SGD:  # noqa: N802
    """Return SGD with Nesterov's momentum, in the form of Sutskever et al. (2013)."""
    return SGD(learning_rate, momentum, weight_decay, nesterov=True)


@asks
@dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi, Hazan and Singer, 2011): the gradient over the root of its summed squares.

    The sum is over all steps and begins with `initial`. `weight_decay` is L2, added to the
    gradient.
    """

    learning_rate: Rate = 0.01
    epsilon: float = 1e-10
    weight_decay: float = 0.0
    initial: float = 0.0

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        check_decay(self.weight_decay)
        number_between("epsilon", self.epsilon, 0, LARGEST)
        number_between("initial", self.initial, 0, LARGEST)

    def begin(self, dtype: DType) -> Updater:
        return _AdagradUpdater(self, learning_rate(self.learning_rate, dtype))


@dataclass(frozen=True)
class _AdagradUpdater:
    settings: Adagrad
    rate: Value

    def update(self, parameter: State, gradient: Value) -> Node:
        squares = moment("adagrad/s", parameter, self.settings.initial)
        attributes = AdagradAttributes(self.settings.epsilon, self.settings.weight_decay)
        operands = (parameter, squares, gradient, self.rate)
        return builder.apply(AdagradUpdate, *operands, attributes=attributes)


@asks
@dataclass(frozen=True)
class RMSProp:
    """RMSProp (Tieleman and Hinton, 2012): the gradient over the root of the mean of its squares.

    `alpha` is the weight of the old mean in the new one. `centered` subtracts the square of the
    gradient's mean (Graves, 2013). With `momentum`, the result accumulates in a velocity.
    `weight_decay` is L2, added to the gradient.
    """

    learning_rate: Rate = 0.01
    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        check_decay(self.weight_decay)
        number_between("alpha", self.alpha, 0, 0.999999999)
        number_between("epsilon", self.epsilon, 0, LARGEST)
        number_between("momentum", self.momentum, 0, 1)

    def begin(self, dtype: DType) -> Updater:
        return _RmspropUpdater(self, learning_rate(self.learning_rate, dtype))


@dataclass(frozen=True)
class _RmspropUpdater:
    settings: RMSProp
    rate: Value

    def update(self, parameter: State, gradient: Value) -> Node:
        s = self.settings
        kinds = ["v", *(["a"] if s.centered else []), *(["b"] if s.momentum else [])]
        moments = [moment(f"rmsprop/{kind}", parameter) for kind in kinds]
        operands = (parameter, *moments, gradient, self.rate)
        numbers = (s.alpha, s.epsilon, s.weight_decay)
        if s.momentum:
            op = CenteredRmspropMomentumUpdate if s.centered else RmspropMomentumUpdate
            with_momentum = RmspropMomentumAttributes(*numbers, s.momentum)
            return builder.apply(op, *operands, attributes=with_momentum)
        plain = CenteredRmspropUpdate if s.centered else RmspropUpdate
        return builder.apply(plain, *operands, attributes=RmspropAttributes(*numbers))


@asks
@dataclass(frozen=True)
class Lion:
    """Lion (Chen et al., 2023): the sign of a mean of gradients, with decoupled weight decay.

    It has one moment. Compared with Adam, use learning rates that are 3 to 10 times smaller, and
    weight decays that are larger by the same factor.
    """

    learning_rate: Rate = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    is_elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        check_decay(self.weight_decay)
        number_between("beta1", self.beta1, 0, 0.999999)
        number_between("beta2", self.beta2, 0, 0.999999999)

    def begin(self, dtype: DType) -> Updater:
        rate = learning_rate(self.learning_rate, dtype)
        return _LionUpdater(self, rate, left_of(rate, self.weight_decay))


@dataclass(frozen=True)
class _LionUpdater:
    settings: Lion
    rate: Value
    left: Value

    def update(self, parameter: State, gradient: Value) -> Node:
        operands = (parameter, moment("lion/m", parameter), gradient, self.rate, self.left)
        attributes = LionAttributes(self.settings.beta1, self.settings.beta2)
        return builder.apply(LionUpdate, *operands, attributes=attributes)
