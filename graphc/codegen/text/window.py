"""C++ that finds the place at which a tap of a window reads, and the windows that read a place.

A tap is C++ for its distance from the window's first place: its number, times the dilation.
"""

from __future__ import annotations

from typing import Protocol

from graphc.ops.geometry import Pair

READ = ("row", "column")
"""Names of the place that is found, along height and width."""


class Windows(Protocol):
    """The steps of windows along height and width, and padding, the sides in front first."""

    @property
    def stride(self) -> Pair: ...

    @property
    def padding(self) -> tuple[int, ...]: ...


def input_place(windows: Windows, axis: int, window: str, tap: str) -> str:
    """A declaration: where along an axis the input is that a window reads for one of its taps."""
    stride, padding = windows.stride[axis], windows.padding[axis]
    return f"const int {READ[axis]} = int({window}) * {stride} + {tap} - {padding};"


def skip_outside(axis: int, extent: int) -> str:
    """A statement in a loop over taps that skips those which read padding."""
    return f"if ({READ[axis]} < 0 || {READ[axis]} >= {extent}) continue;"


def window_over(
    windows: Windows, axis: int, place: str, tap: str, extent: int, far: str
) -> tuple[str, str, str]:
    """Which of `extent` windows along an axis reads a place of the input for a tap.

    Two declarators of integers, for that window's place before it is divided by the stride, named
    `far`, and after; and a statement in a loop over taps that skips those with no such window.
    """
    stride, window = windows.stride[axis], READ[axis]
    return (
        f"{far} = int({place}) + {windows.padding[axis]} - {tap}",
        f"{window} = {far} / {stride}",
        f"if ({far} < 0 || {far} % {stride} || {window} >= {extent}) continue;",
    )
