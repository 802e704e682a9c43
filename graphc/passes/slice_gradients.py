"""The gradient of a value that is read in slices, such as one slice for each time step.

The gradient with respect to one slice is as large as the whole value, and zero outside of the
slice. The sum of T of them would write T whole tensors. If the slices are disjoint along one axis,
the sum is a concatenation, which is written once.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Node, Value
from graphc.ops.concat import concat
from graphc.ops.shape import PadSlice, full


def is_padded_slice(value: Value) -> bool:
    """Return True if a value is a slice with step 1, padded with zeros."""
    node = value.node
    return (
        node is not None
        and isinstance(node.op, PadSlice)
        and node.attributes.value == 0
        and set(node.attributes.steps) <= {1}
    )


def sum_of_slices(slices: Sequence[Node]) -> Value | None:
    """Return the sum of slices that are padded with zeros, as one concatenation.

    Returns None if there is only one, or if they are not disjoint along one axis.
    """
    shape = slices[0].output.shape
    cut = {axis for node in slices for axis in _cut_axes(node)}
    if len(slices) == 1 or len(cut) != 1:
        return None
    (axis,) = cut
    parts: list[Value] = []
    end = 0
    for node in sorted(slices, key=lambda node: node.attributes.starts[axis]):
        start = node.attributes.starts[axis]
        if start < end:
            return None
        parts += [*_zeros(node, axis, start - end), node.inputs[0]]
        end = node.attributes.stops[axis]
    return concat([*parts, *_zeros(slices[0], axis, shape[axis] - end)], axis)


def _cut_axes(node: Node) -> list[int]:
    """Return the axes along which a slice is not the whole."""
    a = node.attributes
    bounds = zip(a.starts, a.stops, a.shape, strict=True)
    return [axis for axis, (start, stop, n) in enumerate(bounds) if (start, stop) != (0, n)]


def _zeros(node: Node, axis: int, extent: int) -> list[Value]:
    """Return zeros with this extent along `axis`, for a part of the sum; none for extent 0."""
    y = node.output
    shape = (*y.shape[:axis], extent, *y.shape[axis + 1 :])
    return [full(shape, 0.0, y.type.dtype)] if extent else []
