"""Where a tap of a convolution reads, and which windows read a place, as C++ in loops over taps."""

from __future__ import annotations

from graphc.codegen.text import window
from graphc.ops.geometry import Conv2dAttributes, Geometry

BEFORE_STRIDE = ("below", "right")
"""Names of a window's place before it is divided by the stride, along height and width."""


def input_place(a: Conv2dAttributes, axis: int, at: str, tap: str) -> str:
    """A declaration: where along an axis the input is that the window `at` reads for a tap."""
    return window.input_place(a, axis, at, _distance(a, axis, tap))


def skip_outside(geometry: Geometry, axis: int) -> str:
    """A statement that skips taps which read padding."""
    return window.skip_outside(axis, geometry.x[2 + axis])


def window_over(geometry: Geometry, axis: int, place: str, tap: str) -> list[str]:
    """Statements: which window along an axis reads a place of the input for that tap. Taps for
    which none does are skipped."""
    a, extent = geometry.attributes, geometry.y[2 + axis]
    distance = _distance(a, axis, tap)
    *found, skip = window.window_over(a, axis, place, distance, extent, BEFORE_STRIDE[axis])
    return [*(f"const int {each};" for each in found), skip]


def _distance(a: Conv2dAttributes, axis: int, tap: str) -> str:
    """How far a tap lies from its window's first place."""
    return f"{tap} * {a.dilation[axis]}"
