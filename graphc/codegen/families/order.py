"""The first elements of sorted lines, by a parallel merge sort.

First, each element of a run of 64 counts the elements of the run that precede it. Then pairs of
runs are merged until one run remains. The rank of an element is its rank in its own run plus the
number of preceding elements in the other run, found by binary search. For equal elements, those of
the left run come first, so the order is deterministic. Runs hold positions along the line, in
scratch; elements are not moved.
"""

from __future__ import annotations

from graphc.codegen.node_calls import Argument, Launch, NodeCalls, Scratch
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import (
    Operand,
    Places,
    decompose,
    offset,
    operand,
    widest_index,
)
from graphc.ir.graph import Node
from graphc.ir.types import TensorType, int32

RUN = 64
"""Length of the initial runs, which are sorted by counting preceding elements."""


@kernels_of("top_k")
def _top_k(node: Node, places: Places) -> NodeCalls:
    writer = _Writer(node, places)
    length = writer.length
    if length <= RUN:
        return NodeCalls((writer.runs(None),))
    buffers = (Scratch(0), Scratch(1))
    launches = [writer.runs(buffers[0])]
    width, merges = RUN, 0
    while width < length:
        target = buffers[1 - merges % 2] if 2 * width < length else None
        launches.append(writer.merge(width, buffers[merges % 2], target))
        width, merges = 2 * width, merges + 1
    positions = TensorType((writer.lines, length), int32)
    return NodeCalls(tuple(launches), (positions, positions))


class _Writer:
    """Writer of the kernels of one node. A work item is an element of x, with the sorted axis
    innermost."""

    def __init__(self, node: Node, places: Places) -> None:
        (x,), (y, chosen), a = node.inputs, node.outputs, node.attributes
        self.attributes, self.length = a, x.shape[a.axis]
        self.others = (*x.shape[: a.axis], *x.shape[a.axis + 1 :])
        self.lines = x.type.elements // self.length
        self.source = operand("x", x, places[x], x.shape)
        self.results = [operand("y", y, places[y], y.shape)]
        self.results.append(operand("chosen", chosen, places[chosen], chosen.shape))
        spans = [(x.shape, self.source), *((y.shape, each) for each in self.results)]
        self.index = widest_index(spans)

    def runs(self, target: Scratch | None) -> Launch:
        """Return a launch that sorts each run by moving elements to their ranks; a single run is
        stored in the results."""
        body = [
            *self.header(),
            f"const Index start = place / {RUN}u * {RUN}u;",
            f"const Index stop = start + {RUN}u < {self.length}u ? start + {RUN}u : "
            f"{self.length}u;",
            f"const auto own = {self.element('place')};",
            "Index rank = start;",
            "for (Index i = start; i < stop; ++i) {",
            f"    const auto other = {self.element('i')};",
            f"    rank += {self.before('other', 'own')} || "
            f"(i < place && !{self.before('own', 'other')});",
            "}",
            *self.stored(target, "place"),
        ]
        return self.launch(body, [], target, ())

    def merge(self, width: int, source: Scratch, target: Scratch | None) -> Launch:
        """Return a launch that merges pairs of runs of `width` elements: each element moves to its
        rank in the merged run."""
        length = self.length
        body = [
            *self.header(),
            "const Index start = place / (2 * width) * (2 * width);",
            f"const Index middle = start + width < {length}u ? start + width : {length}u;",
            f"const Index stop = start + 2 * width < {length}u ? start + 2 * width : {length}u;",
            f"const int *const run = runs + line * {length}u;",
            "const Index from = run[place];",
            f"const auto own = {self.element('from')};",
            "const bool left = place < middle;",
            "Index low = left ? middle : start, high = left ? stop : middle;",
            "const Index begin = low;",
            "while (low < high) {",
            "    const Index i = (low + high) / 2;",
            f"    const auto other = {self.element('Index(run[i])')};",
            f"    const bool first = left ? {self.before('other', 'own')} : "
            f"!{self.before('own', 'other')};",
            "    if (first) low = i + 1;",
            "    else high = i;",
            "}",
            "const Index rank = left ? place + (low - begin) : place - middle + low;",
            *self.stored(target, "from"),
        ]
        runs = Operand("runs", int32, (1,), source)
        return self.launch(body, [runs], target, (width,))

    def header(self) -> list[str]:
        """Return statements that compute the line and position of an item, and the line's offset in
        each operand."""
        axis = self.attributes.axis
        split, indices = decompose("line", self.others, "i")
        begins = [
            f"const Index {o.name}_line = "
            f"{offset(indices, (*o.strides[:axis], *o.strides[axis + 1 :]))};"
            for o in (self.source, *self.results)
        ]
        return [
            f"const Index line = item / {self.length}u;",
            f"const Index place = item % {self.length}u;",
            *split,
            *begins,
        ]

    def element(self, place: str) -> str:
        """Return C++ for the element of x at a position of the item's line."""
        return f"widen(x[x_line + {place} * {self.source.strides[self.attributes.axis]}u])"

    def before(self, a: str, b: str) -> str:
        """Return a C++ condition: a precedes b in the sorted order. NaN counts as larger than any
        number."""
        if self.attributes.largest:
            return f"({a} > {b} || ({a} != {a} && {b} == {b}))"
        return f"({a} < {b} || ({b} != {b} && {a} == {a}))"

    def stored(self, target: Scratch | None, place: str) -> list[str]:
        """Return statements that store the element at position `place` at its `rank`."""
        if target is not None:
            return [f"merged[line * {self.length}u + rank] = int({place});"]
        axis = self.attributes.axis
        y, chosen = (f"{o.name}_line + rank * {o.strides[axis]}u" for o in self.results)
        return [
            f"if (rank < {self.attributes.k}u) {{",
            f"    y[{y}] = x[x_line + {place} * {self.source.strides[axis]}u];",
            f"    chosen[{chosen}] = {place};",
            "}",
        ]

    def launch(
        self,
        body: list[str],
        inputs: list[Operand],
        target: Scratch | None,
        numbers: tuple[int, ...],
    ) -> Launch:
        """Return a launch that runs `body` for all elements of x."""
        outputs = self.results
        if target is not None:
            outputs = [Operand("merged", int32, (1,), target)]
            unread = {f"const Index {o.name}_line" for o in self.results}
            body = [line for line in body if not line.startswith(tuple(unread))]
        given = parameters([self.source, *inputs], outputs)
        given += "".join(", unsigned width" for _ in numbers)
        items = self.lines * self.length
        kernel = grid_kernel("top_k", items, self.index, given, body)
        arguments: tuple[Argument, ...] = tuple(
            o.buffer for o in (self.source, *inputs, *outputs) if o.buffer is not None
        )
        return over_grid(kernel, (*arguments, *numbers), items)
