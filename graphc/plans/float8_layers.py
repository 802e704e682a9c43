"""The linear layers of a plan in precision ``fp8``: which have 8-bit operands, and which do not."""

from __future__ import annotations

from graphc.ir.graph import Graph, State, Value
from graphc.ir.types import bfloat16
from graphc.ops.choice import Cast
from graphc.ops.float8 import MULTIPLE, Float8Linear, Quantization


def describe_float8(graph: Graph) -> str:
    """Return how many weights are read by 8-bit products, and the names of all others with the
    reason."""
    stored: set[Value] = set()
    others: dict[State, str] = {}
    for node in graph.nodes:
        if node.phase != "forward" or not node.op.multiplies or len(node.inputs) < 2:
            continue
        weight = _source(node.inputs[1])
        if isinstance(node.op, Float8Linear):
            stored.add(weight)
        elif isinstance(weight, State) and node.output.type.dtype == bfloat16:
            extents = (*node.inputs[0].shape, *node.output.shape)
            odd = next((extent for extent in extents if extent % MULTIPLE), None)
            reason = "last" if odd is None else f"{odd} is no multiple of {MULTIPLE}"
            others.setdefault(weight, f"{weight.name} ({reason})")
    found = f"{len(stored)} of {len(stored) + len(others.keys() - stored)} linear layers"
    listed = [text for weight, text in others.items() if weight not in stored]
    return f"{found}; in bf16: {', '.join(listed)}" if listed else found


def _source(operand: Value) -> Value:
    """Return the value that an operand is a narrow copy of, else the operand."""
    if operand.node is not None and isinstance(operand.node.op, Cast | Quantization):
        return operand.node.inputs[0]
    return operand
