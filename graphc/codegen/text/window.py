"""C++ statements for the position that a tap of a window reads, and for the windows that read a
position. `tap` is C++ for the distance of the tap from the window's first position: its index times
the dilation.
"""

from __future__ import annotations

from typing import Protocol

from graphc.ops.geometry import Pair

READ = ("row", "column")
"""Names of the C++ variables for the position or window found, along height and width."""


class Windows(Protocol):
    """The strides of windows along height and width, and the paddings, leading sides first."""

    @property
    def stride(self) -> Pair: ...

    @property
    def padding(self) -> tuple[int, ...]: ...


def input_place(windows: Windows, axis: int, window: str, tap: str) -> str:
    """Return the declaration of the input position along an axis that a window reads with one of
    its taps."""
    stride, padding = windows.stride[axis], windows.padding[axis]
    return f"const int {READ[axis]} = int({window}) * {stride} + {tap} - {padding};"


def skip_outside(axis: int, extent: int) -> str:
    """Return a statement that skips, in a loop over taps, the taps that read padding."""
    return f"if ({READ[axis]} < 0 || {READ[axis]} >= {extent}) continue;"


def window_over(
    windows: Windows, axis: int, place: str, tap: str, extent: int, far: str
) -> tuple[str, str, str]:
    """Find the one of `extent` windows along an axis that reads a position of the input for a tap.

    Returns two declarators of integers: the window's position before division by the stride, named
    `far`, and the window's number. Also returns a statement that skips, in a loop over taps, the
    taps without such a window.
    """
    stride, window = windows.stride[axis], READ[axis]
    return (
        f"{far} = int({place}) + {windows.padding[axis]} - {tap}",
        f"{window} = {far} / {stride}",
        f"if ({far} < 0 || {far} % {stride} || {window} >= {extent}) continue;",
    )
