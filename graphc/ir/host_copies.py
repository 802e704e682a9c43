"""Rules for copies between device and host in a graph.

A copy is two nodes, as a collective is: one starts it, and an arrival waits for it. In between, its
source must keep its bytes, and nothing may read its result. A value on the host has no other use
than copies back to the device, since kernels read device memory only.

A step updates a state on the host in this order: it copies the state to the device, an update
replaces that copy, and a write-back replaces the state by the copy. No node reads a replaced value
(`verify`), so nothing fetches a state once its write-back has begun.
"""

from __future__ import annotations

from typing import NoReturn

from graphc.errors import GraphError
from graphc.ir.graph import Graph, Node, State, Value
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
    - Only copies to the device, their arrivals, and write-backs read a value on the host.
    - The end of a write-back replaces its unfinished result.
    - A copy of a state that an update replaces is written back once, to the same state. Only such
      copies are written back.
    - No output of the graph is on the host.
    """
    if not any(node.op.copies_to for node in graph.nodes):
        return
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
        if copy.op.has_effect != node.op.has_effect:
            _fail(graph, node, f"{node.label} does not fit {copy.label}; {CURE}")
        waiting[copy] = node
    _check_write_backs(graph)
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


def fetched_state(value: Value) -> State | None:
    """Return the state on the host whose copy on the device a value is; None if it is not one."""
    copy = None if value.node is None else value.node.host_copy
    if copy is None or copy is value.node or copy.op.copies_to != "device":
        return None
    source = copy.inputs[0]
    return source if isinstance(source, State) else None


def updated_states(graph: Graph) -> set[str]:
    """Return the names of the states that nodes replace, on the device or on the host."""
    states = (each if isinstance(each, State) else fetched_state(each) for each in graph.replaced)
    return {state.name for state in states if state is not None}


def _may_read(node: Node, position: int, value: Value) -> bool:
    """Return True if a node may read a value on the host as operand number `position`."""
    if node.op.copies_to == "device":
        return True
    copy = node.host_copy
    if copy is node:  # a write-back replaces a state on the host
        return value in node.replaced.values()
    return copy is not None and (position == 0 or value is copy.inputs[0])


def _check_write_backs(graph: Graph) -> None:
    """Check that exactly the replaced copies of states are written back, once, to their states."""
    updated: dict[Value, Value] = {}
    """New content of a copy of a state that was not written back yet → the state."""
    written: set[Value] = set()
    for node in graph.nodes:
        if node.op.copies_to and node.op.has_effect:
            source, (over,) = node.inputs[0], node.replaced.values()
            if not over.on_host or updated.pop(source, None) is not over:
                _fail(
                    graph,
                    node,
                    f"{node.label} writes {graph.names[source]} to {graph.names[over]}, but only "
                    "the updated copy of a state on the host is written back, to this state",
                )
            continue
        for output, replaced in node.replaced.items():
            state = fetched_state(replaced)
            if state is not None:
                if state in written:
                    name = graph.names[state]
                    _fail(graph, node, f"{node.label} updates {name} again in the same step")
                written.add(state)
                updated[output] = state
    for output, over in updated.items():
        _fail(
            graph,
            output.producer,
            f"{graph.names[output]}, the new content of {graph.names[over]}, is not written back "
            "to the host",
        )


def _fail(graph: Graph, node: Node, message: str) -> NoReturn:
    raise GraphError(f"{message}\n{text_window(graph, node)}")
