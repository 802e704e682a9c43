"""Linear maps along one axis: one thread per result, in a loop over its row of the table.

Adjacent rows that differ only by a constant shift are stored as one segment. So the table of a
sliding window or of padding is short for any length of the axis. A thread finds its segment by
binary search.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.maps import each_element, own_operands
from graphc.codegen.text.operands import Places, offset
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.errors import ShapeError
from graphc.ir.graph import Node
from graphc.ir.types import DType
from graphc.ops.axis_map import AxisMap, Table

MOST_TAPS = 2**24
"""Maximum number of entries of a table in a kernel's text; tables of CPU kernels may be larger."""


class Segment(NamedTuple):
    """Consecutive results from `first` on. The first sums the elements at `places`; for each
    further result, these positions are shifted by `steps`."""

    first: int
    places: tuple[int, ...]
    steps: tuple[int, ...]
    weights: tuple[float, ...]


def segments_of(table: Table) -> list[Segment]:
    """Return the rows of a table as segments of successive rows, as few as possible."""
    found: list[Segment] = []
    before: Segment | None = None
    starts = table.starts.tolist()
    all_places, all_weights = table.places.tolist(), table.weights.tolist()
    for row, (start, stop) in enumerate(itertools.pairwise(starts)):
        places, weights = tuple(all_places[start:stop]), tuple(all_weights[start:stop])
        if before is not None and weights == before.weights:
            ahead, steps = row - before.first, before.steps
            if ahead == 1:
                steps = tuple(b - a for a, b in zip(before.places, places, strict=True))
            wanted = (a + step * ahead for a, step in zip(before.places, steps, strict=True))
            if places == tuple(wanted):
                before = before._replace(steps=steps)
                found[-1] = before
                continue
        before = Segment(row, places, (0,) * len(places), weights)
        found.append(before)
    return found


def _array(kind: str, name: str, numbers: Iterable[object]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"static const {kind} {name}[] = {{{listed}}};"


def _tables(segments: list[Segment], results: int, weighs: DType | None) -> list[str]:
    """Return statements that declare the segments as constant arrays and find the segment of a
    result."""
    ends = np.cumsum([0, *(len(segment.places) for segment in segments)])
    places = [place for segment in segments for place in segment.places] or [0]
    steps = [step for segment in segments for step in segment.steps] or [0]
    weights = [weight for segment in segments for weight in segment.weights] or [0.0]
    lines = [
        _array("int", "taps", ends),
        _array("int", "places", places),
        _array("int", "steps", steps),
    ]
    if weighs:
        lines.append(_array(C_TYPES[weighs], "weights", (literal(w, weighs) for w in weights)))
    if len(segments) == results:
        return [*lines, "const int segment = int(along), ahead = 0;"]
    return [
        *lines,
        _array("int", "firsts", (segment.first for segment in segments)),
        f"int segment = 0, past = {len(segments)};",
        "while (past - segment > 1) {",
        "    const int middle = (segment + past) / 2;",
        "    if (firsts[middle] <= int(along)) segment = middle;",
        "    else past = middle;",
        "}",
        "const int ahead = int(along) - firsts[segment];",
    ]


@kernels_of(AxisMap)
def _mapped(node: Node, places: Places) -> NodeCalls:
    op, axis = node.op, node.attributes.axis
    assert isinstance(op, AxisMap)
    table, shape = op.table(node), node.output.shape
    if max(len(table.places), shape[axis]) > MOST_TAPS:
        raise ShapeError(
            f"{op.name}: on a GPU, axis {axis} of the result may have at most {MOST_TAPS} elements "
            f"and as many inputs, got {shape[axis]} and {len(table.places)}; {op.cure}"
        )
    inputs, outputs = own_operands(node, places)
    (x,), (y,) = inputs, outputs
    held = arithmetic_dtype(x.dtype)
    names = [f"a{i}" for i in range(len(shape))]
    read = [*names[:axis], "from", *names[axis + 1 :]]
    weigh = "" if table.copies else " * weights[tap]"
    fill = literal(op.fill(node.attributes), held)
    term = f"widen(x[{offset(read, x.strides)}]){weigh}"
    body = [
        f"const Index along = {names[axis]};",
        *_tables(segments_of(table), shape[axis], None if table.copies else held),
        f"{C_TYPES[held]} total = {literal(0.0, held)};",
        "for (int tap = taps[segment]; tap < taps[segment + 1]; ++tap) {",
        "    const Index from = Index(places[tap] + steps[tap] * ahead);",
        f"    total {'=' if table.copies else '+='} {term};",
        "}",
        f"if (taps[segment] == taps[segment + 1]) total = {fill};",
        f"narrow(total, y[{offset(names, y.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body, names),))
