"""Verification that a graph is well-formed: of the results of passes, and of parsed graphs."""

from __future__ import annotations

from typing import NoReturn

from graphc.errors import GraphError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.host_copies import check_host_copies, fetched_state
from graphc.ir.names import check_names
from graphc.ir.text import text_window
from graphc.ir.types import MOST_BYTES


def verify(graph: Graph) -> None:
    """Raise `GraphError`, showing the nodes around the fault, unless the graph is valid.

    In a valid graph

    - every value is written once, by a node that precedes its consumers;
    - every node's types are those that its op infers;
    - names of inputs and of states are unique;
    - the values have less than 2**60 bytes together;
    - a state is updated at most once, and no node reads its old content after that;
    - an input that an op must overwrite is a state, and not a constant, or the copy of a state on
      the host;
    - only a node that waits for a collective or copy reads its output, which is not an output of
      the graph;
    - copies between device and host obey the rules of `graphc.ir.host_copies`.
    """
    check_names(graph)
    total = sum(value.type.bytes for value in graph.values)
    if total >= MOST_BYTES:
        raise GraphError(
            f"the values of a graph must have less than 2**60 bytes together, got {total}; reduce "
            "the network or the batch"
        )
    known: set[Value] = set(graph.sources)
    updated: dict[Value, Node] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value not in known:
                _fail(graph, node, f"{node.label} reads {value!r} before it is computed")
            if value in updated:
                _fail(
                    graph,
                    node,
                    f"{node.label} reads {graph.names[value]} after {updated[value].label} "
                    "replaced it; an update must run after the last use of its state",
                )
            begun = value.node is not None and value.node.op.begins
            if begun and (not node.op.awaits or value is not node.inputs[0]):
                _fail(
                    graph,
                    node,
                    f"{node.label} reads {graph.names[value]} while {value.producer.label} is "
                    "still running; read the output of the arrival node instead",
                )
        inferred = node.op.infer_types(node.attributes, tuple(v.type for v in node.inputs))
        if inferred != node.output_types:
            _fail(graph, node, f"{node.label} returns {inferred}, not {node.output_types}")
        for output, replaced in node.replaced.items():
            fetched = fetched_state(replaced)
            state = replaced if fetched is None else fetched
            # The end of a write-back replaces the unfinished result, see `check_host_copies`.
            is_end = node.host_copy is not None and replaced is node.host_copy.output
            if not is_end and (not isinstance(state, State) or state.role == "constant"):
                name = node.op.must_overwrite[node.op.output_name(output.index)]
                what = "a constant" if isinstance(state, State) else "not a state"
                _fail(graph, node, f"{node.label} replaces {name!r}, which is {what}")
            updated[replaced] = node
        for value in node.outputs:
            if value in known:
                _fail(
                    graph,
                    node,
                    f"{node.label} writes {graph.names[value]}, which another node already writes",
                )
            known.add(value)
    for name, value in graph.outputs.items():
        if value not in known:
            raise GraphError(f"output {name!r} is {value!r}, but no node of the graph computes it")
        if value.node is not None and value.node.op.begins:
            _fail(
                graph,
                value.node,
                f"output {name!r} is the unfinished result of {value.node.label}; return the "
                "output of the arrival node instead",
            )
    check_host_copies(graph)


def _fail(graph: Graph, node: Node, message: str) -> NoReturn:
    raise GraphError(f"{message}\n{text_window(graph, node)}")
