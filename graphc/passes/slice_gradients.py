"""The gradient of a value that is read in slices, such as one slice for each time step.

The gradient with respect to one slice is as large as the whole value, and zero outside of the
slice. The sum of T of them would write T whole tensors. If the slices are disjoint along one axis,
the sum is a concatenation, which is written once.
"""

from __future__ import annotations

from bisect import bisect

from graphc.ir.graph import Node, Value
from graphc.ops.concat import concat
from graphc.ops.shape import PadSlice, full


def cut_axis(value: Value) -> int | None:
    """Return the only axis along which a slice was padded with zeros; None for other values."""
    node = value.node
    if node is None or not isinstance(node.op, PadSlice):
        return None
    a = node.attributes
    bounds = enumerate(zip(a.starts, a.stops, a.shape, strict=True))
    cut = [axis for axis, (start, stop, extent) in bounds if (start, stop) != (0, extent)]
    return cut[0] if len(cut) == 1 and a.value == 0 and set(a.steps) == {1} else None


class DisjointSlices:
    """Padded slices of equal shape, disjoint along one axis, in the order of that axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.starts: list[int] = []
        self.nodes: list[Node] = []

    def insert(self, value: Value) -> bool:
        """Add a padded slice, and return True, if it is disjoint from the others along the axis."""
        if cut_axis(value) != self.axis:
            return False
        start, stop = self._bounds(value.producer)
        index = bisect(self.starts, start)
        if index and self._bounds(self.nodes[index - 1])[1] > start:
            return False
        if index < len(self.starts) and self.starts[index] < stop:
            return False
        self.starts.insert(index, start)
        self.nodes.insert(index, value.producer)
        return True

    def sum(self) -> Value:
        """Return the sum of the slices, as one concatenation if there are several."""
        if len(self.nodes) == 1:
            return self.nodes[0].output
        parts: list[Value] = []
        end = 0
        for node in self.nodes:
            start, stop = self._bounds(node)
            parts += [*self._zeros(start - end), node.inputs[0]]
            end = stop
        return concat(
            [*parts, *self._zeros(self.nodes[0].output.shape[self.axis] - end)], self.axis
        )

    def _bounds(self, node: Node) -> tuple[int, int]:
        return node.attributes.starts[self.axis], node.attributes.stops[self.axis]

    def _zeros(self, extent: int) -> list[Value]:
        """Return zeros for a gap of this extent along the axis, if there is a gap."""
        y = self.nodes[0].output
        shape = (*y.shape[: self.axis], extent, *y.shape[self.axis + 1 :])
        return [full(shape, 0.0, y.type.dtype)] if extent else []
