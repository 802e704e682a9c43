"""Matrix products: kernels that prepare the output, then BLAS calls."""

from __future__ import annotations

from graphc.codegen.calls import NodeCalls
from graphc.codegen.elementwise_ops import Places, copied
from graphc.codegen.gemm import gemms, needs_copy
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided

PRODUCTS = ("matmul", "linear")
"""Ops that are products."""


def product(node: Node, places: Places, tf32: bool = False) -> NodeCalls:
    """What a matmul or linear node does at these places.

    A running sum or a bias is copied into the output first, and the product added to it; a running
    sum that lies there already is not copied. Raises `OptionError` where an operand `needs_copy`.
    """
    y, added = node.output, node.inputs[2:]
    moved = [value for value in added if value.shape != y.shape or places[value] != places[y]]
    return NodeCalls((*(copied(v, y, places) for v in moved), *gemms(node, places, tf32)))


def unreadable(node: Node, strided: Strided) -> tuple[Value, ...]:
    """Operands that lie so that no BLAS can read them."""
    found = [v for v in node.inputs[:2] if v in strided and needs_copy(v, strided[v])]
    return tuple(dict.fromkeys(found))
