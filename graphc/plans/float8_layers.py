"""The linear layers of a plan in precision ``fp8``: which have 8-bit operands, and which do not."""

from __future__ import annotations

from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.types import bfloat16
from graphc.ops.float8 import MULTIPLE, Float8Linear, Quantization
from graphc.ops.matmul import Linear


def describe_float8(graph: Graph) -> str:
    """Return how many weights are read by 8-bit products, and the names of all others with the
    reason."""
    stored: set[Value] = set()
    others: dict[Value, str] = {}
    for node in graph.nodes:
        if node.phase != "forward" or not node.op.multiplies or len(node.inputs) < 2:
            continue
        weight = _source(node.inputs[1])
        if isinstance(node.op, Float8Linear):
            stored.add(weight)
        elif node.output.type.dtype == bfloat16 and (
            isinstance(weight, State) or isinstance(node.op, Linear)
        ):
            # A weight that is gathered from ranks together with others is no state.
            name = weight.name if isinstance(weight, State) else node.label
            others.setdefault(weight, f"{name} ({_reason(node)})")
    found = f"{len(stored)} of {len(stored) + len(others.keys() - stored)} linear layers"
    listed = [text for weight, text in others.items() if weight not in stored]
    return f"{found}; in bf16: {', '.join(listed)}" if listed else found


def _reason(node: Node) -> str:
    """Return why a product has 16-bit operands."""
    rank = len(node.inputs[0].shape)
    if rank != 2:
        return f"a product of {rank} axes"
    extents = (*node.inputs[0].shape, *node.output.shape)
    odd = next((extent for extent in extents if extent % MULTIPLE), None)
    return "last" if odd is None else f"{odd} is no multiple of {MULTIPLE}"


def _source(operand: Value) -> Value:
    """Return the state of which an operand is a copy, such as one in fewer bits, else the
    operand."""
    source = operand
    while source.node is not None and (
        isinstance(source.node.op, Quantization) or len(source.node.inputs) == 1
    ):
        source = source.node.inputs[0]
    return source if isinstance(source, State) else operand
