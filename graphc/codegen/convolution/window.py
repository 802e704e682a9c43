"""Index computations of convolutions as C++, in loops over taps."""

from __future__ import annotations

from graphc.codegen.text import window
from graphc.ops.geometry import Conv2dAttributes, Geometry

BEFORE_STRIDE = ("below", "right")
"""Names of C++ variables for a window's position before division by the stride, along height and
width."""


def input_place(a: Conv2dAttributes, axis: int, at: str, tap: str) -> str:
    """Return the declaration of the input position along an axis that window `at` reads with a
    tap."""
    return window.input_place(a, axis, at, _distance(a, axis, tap))


def skip_outside(geometry: Geometry, axis: int) -> str:
    """Return a statement that skips taps which read padding."""
    return window.skip_outside(axis, geometry.x[2 + axis])


def window_over(geometry: Geometry, axis: int, place: str, tap: str) -> list[str]:
    """Return statements that find the window along an axis that reads an input position with a
    given tap.

    Taps for which there is no such window are skipped.
    """
    a, extent = geometry.attributes, geometry.y[2 + axis]
    distance = _distance(a, axis, tap)
    *found, skip = window.window_over(a, axis, place, distance, extent, BEFORE_STRIDE[axis])
    return [*(f"const int {each};" for each in found), skip]


def _distance(a: Conv2dAttributes, axis: int, tap: str) -> str:
    """Return C++ for the distance of a tap from its window's first element."""
    return f"{tap} * {a.dilation[axis]}"
