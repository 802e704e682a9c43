"""Import rules: functions that translate ONNX operators to graph nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from graphc.onnx.calls import Call, Result

Rule = Callable[[Call], Result | None]
Decorated = TypeVar("Decorated", bound=Rule)

RULES: dict[tuple[str, str], Rule] = {}
"""Rules by (domain, operator); the domain of standard operators is empty."""


def rule(*operators: str, domain: str = "") -> Callable[[Decorated], Decorated]:
    """Register a function for these operators."""

    def register(function: Decorated) -> Decorated:
        for operator in operators:
            RULES[domain, operator] = function
        return function

    return register


from graphc.onnx.rules import (  # noqa: E402 - they register their rules
    activation,
    attention,
    control,
    convolution,
    elementwise,
    indexing,
    losses,
    norm,
    padding,
    pooling,
    products,
    random,
    recurrent,
    reduce,
    resample,
    shape,
    training,
)

__all__ = [
    "RULES",
    "Rule",
    "activation",
    "attention",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "losses",
    "norm",
    "padding",
    "pooling",
    "products",
    "random",
    "recurrent",
    "reduce",
    "resample",
    "rule",
    "shape",
    "training",
]
