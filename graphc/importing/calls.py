"""The interface between operators of a model and import rules: arguments and size limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphc.errors import GraphcError
from graphc.importing.weights import MOST_NUMBERS, MOST_TURNS
from graphc.ir.graph import Value


class UnsupportedError(GraphcError):
    """A node needs an unsupported feature; the message names the feature, not the node."""


def check_turns(turns: int) -> None:
    """Raise `UnsupportedError` for more than `MOST_TURNS` iterations to unroll."""
    if turns > MOST_TURNS:
        raise UnsupportedError(
            f"a loop of at most {MOST_TURNS} iterations can be unrolled, got {turns}"
        )


def check_numbers(*shape: int) -> None:
    """Raise `UnsupportedError` for a known tensor of more than `MOST_NUMBERS` elements."""
    if math.prod(shape) > MOST_NUMBERS:
        raise UnsupportedError(
            f"a constant may have at most {MOST_NUMBERS} elements here, got the shape {list(shape)}"
        )


@dataclass
class Call:
    """A node of a model with its arguments by position or name; omitted ones may be None."""

    operator: str
    arguments: Mapping[Any, Any]
    as_value: Callable[[Any], Value]
    """Converts an operand or a number to a value; a known tensor becomes one constant."""

    def has(self, key: int | str) -> bool:
        """Return True if an argument exists and is not None."""
        return self.arguments.get(key) is not None

    def operand(self, key: int | str) -> Any:
        """Return an argument as it is; raise `UnsupportedError` if it is omitted."""
        found = self.arguments.get(key)
        if found is None:
            raise UnsupportedError(f"operand {key} is missing")
        return found

    def value(self, key: int | str) -> Value:
        """Return an operand as a value of the graph."""
        return self.as_value(self.operand(key))

    def optional(self, key: int | str) -> Value | None:
        """Return an operand as a value of the graph, or None if it is omitted."""
        return self.value(key) if self.has(key) else None
