"""Functions of other frameworks that graphc composes of reshapes and broadcasts."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Value
from graphc.ops.shape import broadcast_to, reshape


def tiled(x: Value, repeats: Sequence[int]) -> Value:
    """Repeat x along each axis; `repeats` has at least one number for each axis of x."""
    shape = (*(1,) * (len(repeats) - x.type.rank), *x.shape)
    apart = [n for extent in shape for n in (1, extent)]
    spread = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    whole = [times * extent for times, extent in zip(repeats, shape, strict=True)]
    return reshape(broadcast_to(reshape(x, apart), spread), whole)
