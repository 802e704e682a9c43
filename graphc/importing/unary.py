"""Functions of one operand that have the same name in several frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphc.ir.graph import Value
from graphc.ops.activation import mish, relu, sigmoid, tanh
from graphc.ops.elementwise import exp, log, neg, sqrt
from graphc.ops.power import reciprocal
from graphc.ops.rounding import abs, ceil, floor, round, sign
from graphc.ops.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    erf,
    sin,
    sinh,
    tan,
)

UNARY: Mapping[str, Callable[[Value], Value]] = {
    function.__name__: function
    for function in (
        abs, acos, acosh, asin, asinh, atan, atanh, ceil, cos, cosh, erf, exp, floor, log, mish,
        neg, reciprocal, relu, round, sigmoid, sign, sin, sinh, sqrt, tan, tanh,
    )
}  # fmt: skip
