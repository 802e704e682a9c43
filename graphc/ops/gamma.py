"""The logarithm of the gamma function, and its derivative.

Both are Stirling's series at arguments of at least 8. Smaller arguments are increased by 8 through
the recurrence of the gamma function, and arguments below 1/2 are reflected (Abramowitz and Stegun,
6.1 and 6.3).
"""

from __future__ import annotations

import math

from graphc.ir.builder import apply
from graphc.ir.graph import Value
from graphc.ops.unary import Unary

STEPS = 8
"""The number of recurrence steps for small arguments."""

SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""Coefficients of z**-1, z**-3, ... in Stirling's series; the error at z = 8 is 1e-14."""

_U = "where(x < 0.5, 1 - x, x)"
_Z = f"where({_U} < {STEPS}, {_U} + {STEPS}, {_U})"
_FACTORS = [f"({_U} + {i})" for i in range(STEPS)]
_ANGLE = f"({math.pi!r} * (x - floor(x + 0.5)))"


def _series(order: int) -> str:
    """Return the expression for a derivative of Stirling's series, by Horner's rule."""
    sizes = [c * math.prod(-(2 * k + 1 + j) for j in range(order)) for k, c in enumerate(SERIES)]
    found = repr(sizes[-1])
    for size in reversed(sizes[:-1]):
        found = f"({size!r} + {found} / ({_Z} * {_Z}))"
    return found + f" / {_Z}" * (order + 1)


def _steps(order: int) -> str:
    """Return the expression for a derivative of the logarithm that the recurrence subtracts."""
    if order == 0:
        found = f"log({' * '.join(_FACTORS)})"
    else:
        size = math.prod(-j for j in range(1, order))
        found = " + ".join(f"{size} / ({' * '.join([factor] * order)})" for factor in _FACTORS)
    return f"where({_U} < {STEPS}, {found}, 0)"


def _reflected(main: str, order: int, reflection: str) -> str:
    """Return the expression of a derivative of lgamma(x), reflected at 1/2.

    For x < 1/2, it is computed from the derivative of lgamma(1 - x). `main` is the expression of
    that derivative without the series and the recurrence.
    """
    inside = f"({main} + {_series(order)} - {_steps(order)})"
    sign = "-" if order % 2 == 0 else ""
    return f"where(x < 0.5, {reflection} + {sign}{inside}, {inside})"


_LGAMMA = _reflected(
    f"({_Z} - 0.5) * (log({_Z}) - 1) + {0.5 * math.log(2 * math.pi) - 0.5!r}",
    0,
    f"log({math.pi!r} / abs(sin({_ANGLE})))",
)
_DIGAMMA = _reflected(f"log({_Z}) - 0.5 / {_Z}", 1, f"-{math.pi!r} / tan({_ANGLE})")
_TRIGAMMA = _reflected(
    f"1 / {_Z} + 0.5 / {_Z} / {_Z}", 2, f"{math.pi**2!r} / (sin({_ANGLE}) * sin({_ANGLE}))"
)
_TETRAGAMMA = _reflected(
    f"-1 / {_Z} / {_Z} - 1 / {_Z} / {_Z} / {_Z}",
    3,
    f"{-2 * math.pi**3!r} / (tan({_ANGLE}) * sin({_ANGLE}) * sin({_ANGLE}))",
)


class Lgamma(Unary):
    """y = log |Γ(x)|."""

    name, expression, precision = "lgamma", _LGAMMA, "wide"
    backward, bend = f"dy * {_DIGAMMA}", _TRIGAMMA


class Digamma(Unary):
    """y = the derivative of log |Γ(x)|."""

    name, expression, precision = "digamma", _DIGAMMA, "wide"
    backward, bend = f"dy * {_TRIGAMMA}", _TETRAGAMMA


def lgamma(x: Value) -> Value:
    """Return log |Γ(x)| of float x; keeps shape and dtype.

    It is infinite at 0 and at negative whole numbers. The gradient is `digamma`. Where the result
    is near 0, its absolute error in float32 is up to 2e-6.
    """
    return apply(Lgamma, x).output


def digamma(x: Value) -> Value:
    """Return the derivative of `lgamma` at float x; keeps shape and dtype.

    It is infinite at 0 and at negative whole numbers.
    """
    return apply(Digamma, x).output
