"""Rules of collectives and of copies to the host: work that runs concurrently with kernels.

A collective is a call of a communication library, or a copy if there is one rank.
"""

from __future__ import annotations

from typing import Literal

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Call, Exchange, HostCopy, NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node, Value
from graphc.ir.types import Layout, span_bytes
from graphc.ops import host_copy
from graphc.ops.collective import Collective


@kernels_of(Collective)
def _begins(node: Node, places: Places) -> NodeCalls:
    (x,), y, attributes = node.inputs, node.output, node.attributes
    if attributes.ranks == 1:
        return NodeCalls(_copy(x, y, places))
    root = getattr(attributes, "root", 0)
    return NodeCalls((Exchange(node.op.name, attributes.ranks, root, x, y),))


@kernels_of(host_copy.HostCopy)
def _copies(node: Node, places: Places) -> NodeCalls:
    """Return a copy of all bytes from the first to the last element, gaps included."""
    x, y = node.inputs[0], node.output
    size = span_bytes(x.type, Layout(0, places[x].strides))
    to: Literal["host", "device"] = "host" if node.op.copies_to == "host" else "device"
    return NodeCalls((HostCopy(to, size, x, y),))


@kernels_of("arrival", "written_back")
def _ends(node: Node, places: Places) -> NodeCalls:
    """Return a copy of the input to the output, or nothing if both have the same place. The plan's
    order makes later nodes wait for the end of the collective or copy."""
    return NodeCalls(_copy(node.inputs[0], node.output, places))


def _copy(x: Value, y: Value, places: Places) -> tuple[Call, ...]:
    return () if places[x].address == places[y].address else (copied(x, y, places),)
