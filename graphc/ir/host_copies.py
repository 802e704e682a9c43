"""Rules for copies between device and host in a graph.

A copy is two nodes, as a collective is: one starts it, and an arrival waits for it. In between, its
source must keep its bytes, and nothing may read its result. A value on the host has no other use
than copies back to the device, since kernels read device memory only.
"""

from __future__ import annotations

from typing import NoReturn

from graphc.errors import GraphError
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.text import text_window

CURE = "create both nodes of a copy with the functions of graphc.ops.host_copy"


def original(value: Value) -> Value:
    """Return the value that copies between device and host copied to `value`; itself if none did.

    For the unfinished result of a copy, it is the value that is being copied.
    """
    while value.node is not None and (copy := value.node.host_copy) is not None:
        value = copy.inputs[0]
    return value


def is_fetched(value: Value) -> bool:
    """Return True if a value is the finished result of a copy from the host to the device."""
    node = value.node
    return node is not None and node.awaited is not None and node.awaited.op.copies_to == "device"


def copied_values(graph: Graph) -> list[Value]:
    """Return the values that copies to the host read, in order of the copies."""
    copies = (node for node in graph.nodes if node.op.copies_to == "host")
    return list(dict.fromkeys(original(node.output) for node in copies))


def check_host_copies(graph: Graph) -> None:
    """Raise `GraphError`, showing the nodes around the fault, unless all copies are valid.

    - A copy to the host reads a value on the device, and a copy to the device one on the host.
    - Exactly one arrival waits for a copy, and the copy's source is among its `reads`.
    - Only copies to the device, and their arrivals, read a value on the host.
    - No output of the graph is on the host.
    """
    waiting: dict[Node, Node] = {}
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value.on_host and not _may_read(node, position, value):
                _fail(
                    graph,
                    node,
                    f"{node.label} reads {graph.names[value]}, which is on the host; copy it to "
                    "the device, and read the output of that copy's arrival",
                )
        if node.op.copies_to == "device" and not node.inputs[0].on_host:
            name = graph.names[node.inputs[0]]
            _fail(graph, node, f"{node.label} reads {name}, which is not on the host")
        copy = node.host_copy
        if copy is None or copy is node:
            continue
        if copy in waiting:
            _fail(graph, node, f"{copy.label} is awaited twice, {CURE}")
        if copy.inputs[0] not in node.inputs[1:]:
            _fail(
                graph,
                node,
                f"{node.label} does not keep {graph.names[copy.inputs[0]]}, the source of the copy "
                f"that it waits for; {CURE}",
            )
        waiting[copy] = node
    for node in graph.nodes:
        if node.op.copies_to and node not in waiting:
            _fail(graph, node, f"no node waits for {node.label}; {CURE}")
    for name, value in graph.outputs.items():
        if value.on_host:
            _fail(
                graph,
                value.producer,
                f"output {name!r} is on the host; return the value that was copied there",
            )


def _may_read(node: Node, position: int, value: Value) -> bool:
    """Return True if a node may read a value on the host as operand number `position`."""
    if node.op.copies_to:
        return node.op.copies_to == "device"
    copy = node.host_copy
    return copy is not None and (position == 0 or value is copy.inputs[0])


def _fail(graph: Graph, node: Node, message: str) -> NoReturn:
    raise GraphError(f"{message}\n{text_window(graph, node)}")
