"""Padding and cropping of any axes: by a constant, or by elements of x, axis after axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import OptionError, ShapeError, choose, quoted
from graphc.ir.attributes import OneOf, Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Value
from graphc.ir.types import TensorType, number_of
from graphc.ops.axis_map import AxisMap, Table, table_of
from graphc.ops.geometry import COUNTED, Pair
from graphc.ops.shape import PadSlice, PadSliceAttributes, Slice, SliceAttributes

REPEATED = ("reflect", "edge", "wrap")
MODES = ("constant", *REPEATED)


@dataclass(frozen=True, slots=True)
class PadAxisAttributes:
    """An axis, its extent in the result, the number of elements before x, and the mode."""

    axis: Annotated[int, Whole()]
    extent: Annotated[int, Whole(1, COUNTED)]
    before: Annotated[int, Whole(0, COUNTED)]
    mode: Annotated[str, OneOf(REPEATED)]


class PadAxis(AxisMap):
    """y = x padded with elements of x on both sides of one axis."""

    name, attributes, partner = "pad_axis", PadAxisAttributes, "pad_axis_gradient"
    cure = "pad the first and the last elements separately and join them with graphc.concat"

    def check(self, attributes: Any, x: TensorType, source: int, result: int) -> None:
        if source + attributes.before > result:
            raise ShapeError(
                f"{source} elements after {attributes.before} padding elements do not fit into "
                f"{result}"
            )

    def forward_table(self, attributes: Any, source: int, result: int) -> Table:
        places = np.arange(result) - attributes.before
        if attributes.mode == "edge":
            read = np.clip(places, 0, source - 1)
        elif attributes.mode == "wrap":
            read = places % source
        else:
            period = max(1, 2 * (source - 1))
            read = source - 1 - np.abs(places % period - (source - 1))
        return table_of(read[:, None], None)


class PadAxisGradient(PadAxis):
    """dx = for each element, the sum of the gradients of its copies."""

    name, partner, transposes = "pad_axis_gradient", "pad_axis", True


# --- function ---


def pad(
    x: Value, widths: Sequence[int | Pair], mode: str = "constant", value: float = 0.0
) -> Value:
    """Pad x by (before, after) elements for each axis, or one number for both.

    Negative widths crop, before any padding. The mode "constant" pads with `value`. "edge" repeats
    the outermost elements, "reflect" mirrors x at its outermost elements without repeating them,
    and "wrap" continues at the other end. All accept widths beyond x. Returns x itself if all
    widths are 0. Along an axis padded in another mode than "constant", the result has at most 2**26
    elements, 2**24 on a GPU.

    Raises `ShapeError` if the number of widths is not that of the axes, or no element of an axis
    remains. Raises `OptionError` for another mode, and `DTypeError` for a value that x's dtype
    cannot represent.
    """
    rank = as_value("pad", x).type.rank
    choose("pad: mode", mode, MODES)
    if not isinstance(widths, Sequence) or len(widths) != rank:
        raise ShapeError(f"pad: give (before, after) for each of {rank} axes, got {quoted(widths)}")
    pairs = [_width(width) for width in widths]
    number = number_of("pad: value", value, x.type.dtype)
    x = _cropped(x, pairs)
    added = [(max(before, 0), max(after, 0)) for before, after in pairs]
    if not any(map(any, added)):
        return x
    if mode == "constant":
        return _surrounded(x, added, number)
    for axis, (before, after) in enumerate(added):
        if before or after:
            attributes = PadAxisAttributes(axis, before + x.shape[axis] + after, before, mode)
            x = apply(PadAxis, x, attributes=attributes).output
    return x


def _width(given: int | Pair) -> Pair:
    both = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(both) != 2 or any(not isinstance(n, int) or isinstance(n, bool) for n in both):
        raise OptionError(
            f"pad: a width must be an integer or (before, after), got {quoted(given)}"
        )
    return both[0], both[1]


def _cropped(x: Value, pairs: Sequence[Pair]) -> Value:
    """Crop x by the negative widths, as a view."""
    starts = tuple(max(0, -before) for before, _ in pairs)
    stops = tuple(n - max(0, -after) for n, (_, after) in zip(x.shape, pairs, strict=True))
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        raise ShapeError(f"pad: widths {[*pairs]} remove all elements of {x.type}")
    if not any(starts) and stops == x.shape:
        return x
    attributes = SliceAttributes(starts, stops, (1,) * len(starts))
    return apply(Slice, x, attributes=attributes).output


def _surrounded(x: Value, added: Sequence[Pair], value: float) -> Value:
    starts = tuple(before for before, _ in added)
    stops = tuple(before + n for before, n in zip(starts, x.shape, strict=True))
    shape = tuple(stop + after for stop, (_, after) in zip(stops, added, strict=True))
    attributes = PadSliceAttributes(shape, starts, stops, (1,) * len(starts), value)
    return apply(PadSlice, x, attributes=attributes).output
