"""The text form of a graph; `graphc.ir.parse` reads it back.

    graph {
      %x: f32[64,784] = input()
      @layer0/weight: f32[10,784] = parameter() {initial='uniform', scale=0.08}
      @shift: f32[2] = constant() {values=(0.1, -2.5)}
      %0: f32[64,10] = matmul(%x, @layer0/weight) {transpose_a=False, transpose_b=True}  # layer0
      %0.m1: f32[64,10] = ...                     the first mirrored copy of %0
      output loss = %7
    }

Square brackets after the attributes hold marks that are not the default: the phase, ``mirror=2``
(how often the node may be recomputed) and ``keep``, or ``keep=1`` if only that output is kept. A
node can only read values defined above it, so a cycle cannot be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from graphc.errors import window
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.op import attribute_items


def format_graph(graph: Graph) -> str:
    """Return the whole graph, with one line per source, node or output."""
    lines = ["graph {"]
    lines += [f"  {_format_source(graph, source)}" for source in graph.sources]
    lines += [f"  {format_node(graph, node)}" for node in graph.nodes]
    lines += [f"  output {name} = {graph.names[value]}" for name, value in graph.outputs.items()]
    return "\n".join([*lines, "}"]) + "\n"


def _format_source(graph: Graph, source: Value) -> str:
    details: dict[str, Any] = {}
    kind = "input"
    if isinstance(source, Input):
        details = {} if source.default is None else {"default": source.default}
    elif isinstance(source, State):
        kind = source.role
        details = source.initial.details
        if source.role == "parameter" and not source.trainable:
            details["trainable"] = False
        if source.on_host:
            details["memory"] = source.memory
    suffix = " [keep]" if source in graph.kept else ""
    return f"{graph.names[source]}: {source.type} = {kind}(){_braces(details)}{suffix}"


def format_node(graph: Graph, node: Node) -> str:
    """Return one node as a typed equation."""
    names = graph.names
    left = ", ".join(f"{names[value]}: {value.type}" for value in node.outputs)
    # An operand that is not of the graph is shown for the message of an error.
    operands = ", ".join(names[v] if v in names else repr(v) for v in node.inputs)
    marks: list[str] = [] if node.phase == "forward" else [node.phase]
    marks += [f"mirror={node.mirror}"] if node.mirror else []
    marks += [f"segment={node.segment}"] if node.segment else []
    kept = [value.index for value in node.outputs if value in graph.kept]
    marks += ["keep"] if len(kept) == len(node.outputs) else [f"keep={index}" for index in kept]
    suffix = f" [{', '.join(marks)}]" if marks else ""
    suffix += f"  # {node.scope}" if node.scope else ""
    usual = {field.name: field.default for field in fields(node.attributes)}
    items = attribute_items(node.attributes)
    braces = _braces({key: value for key, value in items if value != usual[key]})
    return f"{left} = {node.op.name}({operands}){braces}{suffix}"


def _braces(details: dict[str, Any]) -> str:
    inner = ", ".join(f"{key}={_plain(value)!r}" for key, value in details.items())
    return f" {{{inner}}}" if inner else ""


def _plain(given: Any) -> Any:
    """Return NumPy numbers as Python numbers, which print as literals."""
    return given.item() if isinstance(given, np.generic) else given


def text_window(graph: Graph, node: Node, radius: int = 3) -> str:
    """Return the lines of the nodes around one, with an arrow at it, for error messages."""
    step = graph.position[node]
    around: Sequence[Node] = graph.nodes[max(0, step - radius) : step + radius + 1]
    return window([format_node(graph, other) for other in around], around.index(node))
