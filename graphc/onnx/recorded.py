"""Recording of a graph's text form in the metadata of its ONNX file, for a lossless round trip.

The text is used only if its export would give the nodes, inputs, outputs and initializers of the
file. A file that another tool has modified is imported like any other file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto

from graphc.errors import GraphcError
from graphc.ir import builder
from graphc.ir.contents import Contents
from graphc.ir.graph import Graph, State, Value
from graphc.ir.op import Array
from graphc.ir.parse import parse_graph
from graphc.ir.rewrite import Rewriter
from graphc.ir.text import format_graph
from graphc.onnx.written import written

GRAPH, TRAINING = "graphc.graph", "graphc.training"
"""Keys of the metadata for the graph's text, and for the flag of training form."""


_BYTES = re.compile(r"(?<=base64=')[^']*(?=', digest=')")
_CONSTANT = re.compile(r"@([\w./-]+)(: .* = constant\(\) \{base64=')(', digest=')")


def record(model: ModelProto, graph: Graph, training: bool) -> None:
    """Write the graph's text to the metadata of its model, without the contents of states."""
    text = _BYTES.sub("", format_graph(graph))
    for key, value in ((GRAPH, text), (TRAINING, str(training))):
        model.metadata_props.add(key=key, value=value)


@dataclass(frozen=True)
class Recorded:
    """The graph from which a file was written, and its states by names of initializers.

    `training` is True if the file computes the forward pass of a training step.
    """

    graph: Graph
    states: Mapping[str, State]
    training: bool


def recorded(model: ModelProto, read: Callable[[str], Array]) -> Recorded | None:
    """Return the graph from which a file was written.

    Returns None if the file has no record, or was modified since. `read` returns the content of an
    initializer.
    """
    notes = {entry.key: entry.value for entry in model.metadata_props}
    if GRAPH not in notes:
        return None
    training = notes.get(TRAINING) == "True"
    try:
        graph = _with_shared_states(parse_graph(_filled(notes[GRAPH], model, read)))
        again = written(graph, training)
    except GraphcError:
        return None
    made = again.model
    if list(model.opset_import) != list(made.opset_import):
        return None
    if _structure(model.graph) != _structure(made.graph):
        return None
    states = {t.name: s for t, s in zip(made.graph.initializer, again.states, strict=False)}
    for name, state in states.items():
        if (
            isinstance(state.initial, Contents)
            and Contents(read(name)).digest != state.initial.digest
        ):
            return None
    for value in graph.kept:
        builder.keep(value)
    return Recorded(graph, states, training)


def _filled(text: str, model: ModelProto, read: Callable[[str], Array]) -> str:
    """Insert the bytes of constants into the text of a graph.

    `read` returns them from the initializers with the same names.
    """
    held = {tensor.name for tensor in model.graph.initializer}

    def fill(found: re.Match[str]) -> str:
        name, before, behind = found.groups()
        content = read(name).tobytes() if name in held else b""
        return f"@{name}{before}{base64.b64encode(content).decode('ascii')}{behind}"

    return _CONSTANT.sub(fill, text)


def _structure(graph: GraphProto) -> tuple[object, ...]:
    """Return a graph's nodes, inputs, outputs and the types of initializers, for comparison."""
    parts = (*graph.node, *graph.input, *graph.output)
    tensors = tuple((t.name, t.data_type, tuple(t.dims)) for t in graph.initializer)
    sparse = len(graph.sparse_initializer)
    return tuple(part.SerializeToString(deterministic=True) for part in parts), tensors, sparse


def _with_shared_states(graph: Graph) -> Graph:
    """Replace the step counter and the seed of a graph by the states shared in this process."""
    shared = {state.name: state for state in (builder.STEP, builder.SEED)}
    standing: dict[Value, Value] = {
        state: shared[state.name]
        for state in graph.states
        if state.name in shared and state.type == shared[state.name].type
    }
    rewriter = Rewriter(graph, standing)
    for node in graph.nodes:
        rewriter.put(node, rewriter.moved(node))
    return rewriter.result()
