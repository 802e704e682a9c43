"""Optimizers: each adds update nodes to a graph, one per parameter.

If the learning rate is a number, it is an input of the program with that number as its default:
``program.step(x=..., learning_rate=1e-4)`` changes it for one step. A `Schedule` is computed inside
the step from the step counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphc.errors import no_attribute
from graphc.optim.adam import LAMB, Adam, AdamW
from graphc.optim.descent import SGD, Adagrad, Lion, Momentum, Nesterov, RMSProp
from graphc.optim.groups import Groups
from graphc.optim.muon import Muon
from graphc.optim.rates import OPTIMIZERS, Optimizer, Rate, Schedule, Updater

__all__ = [
    "LAMB",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Groups",
    "Lion",
    "Momentum",
    "Muon",
    "Nesterov",
    "Optimizer",
    "RMSProp",
    "Rate",
    "Schedule",
    "Updater",
]

LARGEST_FLOAT32 = 3.4028234663852886e38

OPTIMIZERS |= {
    "sgd": SGD,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "lion": Lion,
    "lamb": LAMB,
    "muon": Muon,
}


if not TYPE_CHECKING:  # a type checker knows the names, and would accept any other

    def __getattr__(name: str) -> object:
        known = [kind.__name__ for kind in (Schedule, Groups, *OPTIMIZERS.values())]
        raise no_attribute(__name__, name, known)
