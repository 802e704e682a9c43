"""Rules of argmax and argmin along an axis."""

from __future__ import annotations

from graphc.codegen.lines.program import Along, Combine, Lines, Reduce
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import programs_of
from graphc.codegen.text.operands import Places, counter, on_frame, operand
from graphc.ir.graph import Node
from graphc.ir.types import int64
from graphc.ops.order import PlaceOf


@programs_of(PlaceOf)
def _place_of(node: Node, places: Places) -> NodeCalls:
    """Return a program that computes the extreme of a line, then its first or last position; NaN
    counts as the extreme.

    Lines are not split: parts of them would store positions in the dtype of x, which cannot
    represent them all.
    """
    op, (x,), y, a = node.op, node.inputs, node.output, node.attributes
    assert isinstance(op, PlaceOf)
    length, rank = x.shape[a.axis], x.type.rank
    kept = (*x.shape[: a.axis], 1, *x.shape[a.axis + 1 :])
    which: Combine = "Max" if a.last else "Min"
    none = -1 if a.last else length
    found = f"where(x == best, place, where(x != x, place, {none}))"
    program = Lines(
        x.shape,
        (a.axis,),
        (operand("x", x, places[x], x.shape), counter("place", int64, a.axis, rank)),
        (on_frame("y", y, places[y], kept, x.shape),),
        (Reduce("Max" if op.largest else "Min", {"best": "x"}), Reduce(which, {"found": found})),
        per_line={"y": "found"},
    )
    return NodeCalls((Along(op.name, program.in_memory_order(), whole=True),))
