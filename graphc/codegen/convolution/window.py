"""C++ that finds the place at which a tap of a window reads, and the windows that read a place."""

from __future__ import annotations

from graphc.ops.geometry import Conv2dAttributes, Geometry

READ = ("row", "column")
"""Names of the place that is found, along height and width."""

BEFORE_STRIDE = ("below", "right")
"""Names of that place before it is divided by the stride."""


def input_place(a: Conv2dAttributes, axis: int, window: str, tap: str) -> str:
    """A declaration: where along an axis the input is that a window reads for one of its taps."""
    return (
        f"const int {READ[axis]} = int({window}) * {a.stride[axis]}"
        f" + {tap} * {a.dilation[axis]} - {a.padding[axis]};"
    )


def skip_outside(geometry: Geometry, axis: int) -> str:
    """A statement in a loop over taps that skips those which read padding."""
    place = READ[axis]
    return f"if ({place} < 0 || {place} >= {geometry.x[2 + axis]}) continue;"


def window_over(geometry: Geometry, axis: int, place: str, tap: str) -> list[str]:
    """Statements in a loop over taps: which window along an axis reads a place of the input for
    that tap. Taps for which none does are skipped."""
    a, far, window = geometry.attributes, BEFORE_STRIDE[axis], READ[axis]
    return [
        f"const int {far} = int({place}) + {a.padding[axis]} - {tap} * {a.dilation[axis]};",
        f"const int {window} = {far} / {a.stride[axis]};",
        f"if ({far} < 0 || {far} % {a.stride[axis]} || {window} >= {geometry.y[2 + axis]})"
        " continue;",
    ]
