"""Support of integer operands in ops that are only defined for floats."""

from __future__ import annotations

from collections.abc import Callable

import graphc
from graphc.ir.graph import Value


def through_floats(function: Callable[..., Value], *values: Value) -> Value:
    """Apply a function to integers in float64, which is exact up to 2**53."""
    dtype = values[0].type.dtype
    return graphc.cast(function(*(graphc.cast(x, "float64") for x in values)), dtype)
