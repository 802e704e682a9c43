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


def may_join(slices: Sequence[Node], value: Value) -> bool:
    """Return True if a value is a padded slice that is disjoint from `slices` along one axis."""
    node = value.node
    if node is None or not isinstance(node.op, PadSlice):
        return False
    a, cut = node.attributes, _cut_axes(node)
    if a.value or set(a.steps) != {1} or len(cut) != 1:
        return False
    (axis,) = cut
    return all(
        _cut_axes(other) == cut
        and (
            other.attributes.stops[axis] <= a.starts[axis]
            or a.stops[axis] <= other.attributes.starts[axis]
        )
        for other in slices
    )


def sum_of_slices(slices: Sequence[Node]) -> Value:
    """Return the sum of slices that may be joined, as one concatenation if there are several."""
    if len(slices) == 1:
        return slices[0].output
    (axis,) = _cut_axes(slices[0])
    parts: list[Value] = []
    end = 0
    for node in sorted(slices, key=lambda node: node.attributes.starts[axis]):
        parts += [*_zeros(node, axis, node.attributes.starts[axis] - end), node.inputs[0]]
        end = node.attributes.stops[axis]
    return concat([*parts, *_zeros(slices[0], axis, slices[0].output.shape[axis] - end)], axis)


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
