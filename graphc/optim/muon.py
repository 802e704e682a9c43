"""Muon: updates matrices along their orthogonalized gradient, with all singular values near 1.

For a mean of gradients u = U · S · Vᵀ, the direction is about U · Vᵀ. Newton-Schulz iterations
approximate it: each applies a polynomial that moves singular values towards 1, and needs only
matrix products. The products are ordinary nodes of a graph, so the plan includes their memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.errors import choose, number_between, whole_number
from graphc.ir import builder
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import DType
from graphc.keywords import asks
from graphc.ops.choice import cast, maximum
from graphc.ops.elementwise import add, div, scale, sqrt
from graphc.ops.matmul import matmul
from graphc.ops.optimizer_update import MuonAttributes, MuonUpdate
from graphc.ops.reduce import square_sum
from graphc.optim.adam import AdamW
from graphc.optim.rates import (
    Optimizer,
    Rate,
    Updater,
    check_decay,
    check_rate,
    learning_rate,
    left_of,
    moment,
    optimizer_of,
)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x³ and x⁵, chosen by Jordan et al. (2024) for the steepest slope at 0."""
LEAST_NORM = 1e-7
MOST_ROUNDS = 99
ADJUSTMENTS = ("match_rms_adamw", "original")


@asks
@dataclass(frozen=True)
class Muon:
    """Muon (Jordan et al., 2024) for matrices, with decoupled weight decay.

    `momentum` is the weight of the old mean of gradients in the new one. With `nesterov`, the
    current gradient is averaged in once more (Nesterov's momentum). The mean is made approximately
    orthogonal by `rounds` Newton-Schulz iterations.

    With ``adjust="match_rms_adamw"`` the rate is multiplied by 0.2 · √(the longer side), so that
    learning rates of AdamW are suitable (Liu et al., 2025). With "original" the factor is √(rows /
    columns), at least 1.

    Parameters that do not have two axes use the optimizer `others`, by default AdamW with the same
    rate and decay. Use AdamW for embeddings and last layers: see `Groups`.
    """

    learning_rate: Rate = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    rounds: int = 5
    adjust: str = "match_rms_adamw"
    others: Optimizer | str | None = None

    def __post_init__(self) -> None:
        check_rate(self.learning_rate)
        check_decay(self.weight_decay)
        number_between("momentum", self.momentum, 0, 0.999999)
        choose("adjust", self.adjust, ADJUSTMENTS)
        rounds = whole_number("rounds", self.rounds)
        number_between("rounds", rounds, 1, MOST_ROUNDS)
        if self.others is not None:
            object.__setattr__(self, "others", optimizer_of("others", self.others))

    def begin(self, dtype: DType) -> Updater:
        rate = learning_rate(self.learning_rate, dtype)
        if self.others is None:
            others = AdamW(weight_decay=self.weight_decay).at(rate)
        else:
            with builder.scope("others"):
                others = optimizer_of("others", self.others).begin(dtype)
        return _MuonUpdater(self, rate, left_of(rate, self.weight_decay), others)


@dataclass(frozen=True)
class _MuonUpdater:
    settings: Muon
    rate: Value
    left: Value
    others: Updater

    def update(self, parameter: State, gradient: Value) -> Node:
        if parameter.type.rank != 2:
            return self.others.update(parameter, gradient)
        s, mean = self.settings, moment("muon/b", parameter)
        kept = s.momentum**2 if s.nesterov else s.momentum
        wide = cast(gradient, mean.type.dtype)
        direction = orthogonal(add(scale(mean, kept), scale(wide, 1 - kept)), s.rounds)
        operands = (parameter, mean, gradient, direction, self.rate, self.left)
        attributes = MuonAttributes(s.momentum, _factor(s.adjust, *parameter.shape))
        return builder.apply(MuonUpdate, *operands, attributes=attributes)


def _factor(adjust: str, rows: int, columns: int) -> float:
    if adjust == "original":
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def orthogonal(x: Value, rounds: int) -> Value:
    """Return the matrix x with its singular values moved to about 1 by `rounds` iterations."""
    a, b, c = COEFFICIENTS
    x = div(x, maximum(sqrt(square_sum(x)), LEAST_NORM))
    is_tall = x.shape[0] > x.shape[1]
    for _ in range(rounds):
        gram = matmul(x, x, is_tall, not is_tall)
        slope = add(scale(gram, b), scale(matmul(gram, gram), c))
        x = add(scale(x, a), matmul(x, slope) if is_tall else matmul(slope, x))
    return x
