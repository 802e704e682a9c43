"""The geometry of convolutions and windows: shapes, strides, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from graphc.errors import OptionError, ShapeError, quoted
from graphc.ir.attributes import Whole
from graphc.ir.types import TensorType

Pair = tuple[int, int]

Sides = int | Pair | tuple[Pair, Pair]
"""Padding as users specify it: one number, (rows, columns), or ((top, bottom), (left, right))."""

COUNTED = 2**31 - 1
"""The largest stride, padding or index: kernels count indices in 32 bits."""

Stride = Annotated[Pair, Whole(1, COUNTED)]
Padding = Annotated[tuple[int, ...], Whole(0, COUNTED)]
"""(rows, columns) on both sides, or (top, left, bottom, right)."""
Extent = Annotated[Pair, Whole(1, COUNTED)]
Groups = Annotated[int, Whole(1)]


@dataclass(frozen=True, slots=True)
class Conv2dAttributes:
    """Window geometry: (rows, columns) each; padding is zeros."""

    stride: Stride = (1, 1)
    padding: Padding = (0, 0)
    dilation: Stride = (1, 1)
    groups: Groups = 1

    def output_extents(self, x: TensorType, window: Sequence[int]) -> tuple[int, int]:
        """Return the numbers of windows along both axes.

        Raises `ShapeError` if no window fits, or a padded axis is too long for 32-bit indices.
        """
        if len(self.padding) not in (2, 4):
            raise ShapeError(
                f"padding must be (rows, columns) or (top, left, bottom, right), got {self.padding}"
            )
        before, behind = self.padding[:2], self.padding[-2:]
        padded = [n + p + q for n, p, q in zip(x.shape[2:], before, behind, strict=True)]
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, window, strict=True)]
        if any(most < least for most, least in zip(padded, reach, strict=True)):
            raise ShapeError(
                f"a window of {list(window)} with dilation {self.dilation} does not fit into "
                f"{list(x.shape[2:])} with padding {self.padding}"
            )
        if max(padded) > COUNTED:
            raise ShapeError(
                f"a padded map must have at most {COUNTED} rows and columns, got {padded}"
            )
        down, across = (
            (n - k) // s + 1 for n, k, s in zip(padded, reach, self.stride, strict=True)
        )
        return down, across


class Window(NamedTuple):
    """One kernel position on one axis: windows `[first, last)` read start, start + step, ..."""

    first: int
    last: int
    start: int
    stop: int
    step: int

    def outer(self) -> slice:
        """Return the windows as a slice."""
        return slice(self.first, self.last)

    def inner(self) -> slice:
        """Return the input elements that the windows read as a slice."""
        return slice(self.start, self.stop, self.step)


def window(
    position: int, windows: range, extent: int, stride: int, padding: int, dilation: int
) -> Window:
    """Return the windows of a range whose kernel `position` falls inside the input.

    Numbers of windows in the result are relative to the start of `windows`. At this position,
    window i reads element i · stride + position · dilation - padding of an input of extent
    `extent`.
    """
    shift = position * dilation - padding
    first = max(windows.start, -(shift // stride))
    last = min(windows.stop, (extent - 1 - shift) // stride + 1)
    last = max(first, last)
    start = first * stride + shift
    stop = start + (last - first - 1) * stride + 1 if last > first else start
    return Window(first - windows.start, last - windows.start, start, stop, stride)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shapes of a convolution x * w = y."""

    attributes: Conv2dAttributes
    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    y: tuple[int, int, int, int]
    itemsize: int

    @property
    def depth(self) -> int:
        """The number of products summed for one output element."""
        return self.w[1] * self.w[2] * self.w[3]

    @property
    def is_pointwise(self) -> bool:
        """True if unfolding would not change the input: 1x1 windows without stride and padding."""
        return (
            self.w[2:] == (1, 1)
            and self.attributes.stride == (1, 1)
            and (self.attributes.padding == (0, 0))
        )


def plain_attributes(attributes: Any) -> Conv2dAttributes:
    """Return the convolution attributes of a convolution or of one of its gradients."""
    return Conv2dAttributes(
        attributes.stride, attributes.padding, attributes.dilation, attributes.groups
    )


def geometry_of(attributes: Any, x: TensorType, w: TensorType, y: TensorType) -> Geometry:
    """Return the geometry of a convolution from the types of its three tensors."""
    plain = plain_attributes(attributes)
    itemsize = max(4, x.dtype.itemsize)  # 16-bit floats are unfolded as float32
    return Geometry(plain, _four(x), _four(w), _four(y), itemsize)


def _four(type: TensorType) -> tuple[int, int, int, int]:
    a, b, c, d = type.shape
    return a, b, c, d


# --- numbers as users give them ---


def pair(where: str, given: int | Pair, least: int) -> Pair:
    """Return (rows, columns) from one or two numbers.

    Raises `OptionError` for one below `least`.
    """
    both = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(both) != 2 or any(not _is_whole(n) or n < least for n in both):
        raise OptionError(
            f"{where} must be an integer of at least {least}, or two of them, got {quoted(given)}"
        )
    return both[0], both[1]


def padding_of(sides: Sequence[Pair]) -> tuple[int, ...]:
    """Return the padding attribute from (before, after) of rows and columns."""
    before, behind = zip(*sides, strict=True)
    return before if before == behind else (*before, *behind)


def axis_numbers(where: str, given: int | Sequence[int], axes: int, least: int) -> tuple[int, ...]:
    """Return one number per axis, from one number or one per axis.

    Raises `OptionError` for a number below `least`.
    """
    all_axes = tuple(given) if isinstance(given, Sequence) else (given,) * axes
    if len(all_axes) != axes or any(not _is_whole(n) or n < least for n in all_axes):
        raise OptionError(
            f"{where} must be an integer of at least {least}, or one for each of {axes} axes, got "
            f"{quoted(given)}"
        )
    return all_axes


def axis_sides(where: str, given: object, axes: int) -> tuple[Pair, ...]:
    """Return (before, after) per axis, from one number, one per axis, or a pair per axis."""
    if isinstance(given, str):
        raise OptionError(
            f"{where} must be numbers, got {given!r}; (kernel - 1) // 2 keeps the extents if the "
            "kernel is odd and the stride 1, and 0 is no padding"
        )
    if not isinstance(given, Sequence) or all(map(_is_whole, given)):
        return tuple((n, n) for n in axis_numbers(where, given, axes, 0))  # type: ignore[arg-type]
    if len(given) != axes:
        raise OptionError(
            f"{where} must be (before, after) for each of {axes} axes, got {quoted(given)}"
        )
    return tuple(pair(where, side, 0) for side in given)


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
