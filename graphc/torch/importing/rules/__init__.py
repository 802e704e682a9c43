"""Rules that convert ATen operators into graphc nodes, one function per operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graphc.torch.importing.calls import Call, Result

Rule = Callable[[Call], Result]
Decorated = TypeVar("Decorated", bound=Rule)

RULES: dict[str, Rule] = {}
"""Maps operators to their rules, which apply to all overloads."""


def rule(*operators: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that registers a rule for these operators."""

    def register(function: Decorated) -> Decorated:
        for operator in operators:
            RULES[operator] = function
        return function

    return register


from graphc.torch.importing.rules import (  # noqa: E402 - they enter themselves
    activation,
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    loss,
    norm,
    pooling,
    products,
    random,
    recurrent,
    reduce,
    resample,
    shape,
)

__all__ = [
    "RULES",
    "Rule",
    "activation",
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "loss",
    "norm",
    "pooling",
    "products",
    "random",
    "recurrent",
    "reduce",
    "resample",
    "rule",
    "shape",
]
