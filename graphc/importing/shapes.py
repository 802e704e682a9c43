"""Functions of other frameworks that graphc composes of reshapes and broadcasts."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Value
from graphc.ops.concat import concat
from graphc.ops.shape import broadcast_to, reshape


def stacked(parts: Sequence[Value], axis: int) -> Value:
    """Stack values of one shape along a new axis, given as a number of at least 0."""
    shape = parts[0].shape
    wide = [reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return wide[0] if len(wide) == 1 else concat(wide, axis)


def tiled(x: Value, repeats: Sequence[int]) -> Value:
    """Repeat x along each axis; `repeats` has at least one number for each axis of x."""
    shape = (*(1,) * (len(repeats) - x.type.rank), *x.shape)
    apart = [n for extent in shape for n in (1, extent)]
    spread = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    whole = [times * extent for times, extent in zip(repeats, shape, strict=True)]
    return reshape(broadcast_to(reshape(x, apart), spread), whole)
