"""Conversion of a graph to an ONNX model, without the contents of its states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

import graphc.onnx.exports as _rules  # noqa: F401 - registers the rules
from graphc.errors import OnnxError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.onnx.emission import RULES, Emission, Rule, element_type
from graphc.onnx.exports.axis_maps import by_table
from graphc.onnx.exports.elementwise import by_expression
from graphc.ops.axis_map import AxisMap
from graphc.ops.elementwise import Elementwise


@dataclass(frozen=True)
class Written:
    """An ONNX model without contents, and the states for its initializers, in their order."""

    model: ModelProto
    states: tuple[State, ...]


def written(graph: Graph, training: bool) -> Written:
    """Return the model of a graph; raise an `OnnxError` that lists unsupported ops."""
    read = frozenset(value for node in graph.nodes for value in node.inputs)
    on = Emission(training, read | frozenset(graph.outputs.values()))
    on.names.update((value, on.name(value.name)) for value in graph.inputs)
    outputs = {name: on.name(name) for name in graph.outputs}
    on.names.update((state, on.name(state.name)) for state in graph.states)
    _emit(graph, on)
    _name_outputs(graph, on, outputs)
    used = {name for node in on.nodes for name in node.input}
    states = tuple(state for state in graph.states if on.names[state] in used)
    tensors = [_tensor(on.names[state], state) for state in states]
    made = helper.make_graph(
        on.nodes,
        "graphc",
        [_described(on.names[value], value) for value in graph.inputs],
        [_described(outputs[name], value) for name, value in graph.outputs.items()],
        [*tensors, *_defaults(graph, on)],
    )
    opsets = [helper.make_opsetid("", on.opset)]
    model = helper.make_model(
        made,
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="graphc",
    )
    return Written(model, states)


def _tensor(name: str, state: State) -> TensorProto:
    return TensorProto(name=name, data_type=element_type(state.type.dtype), dims=state.shape)


def _described(name: str, value: Value) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type(value.type.dtype), value.shape)


def _defaults(graph: Graph, on: Emission) -> Iterator[TensorProto]:
    """Yield an initializer with the default value of each optional input."""
    for value in graph.inputs:
        if value.default is not None:
            number = np.array(value.default).astype(value.type.dtype.numpy)
            yield numpy_helper.from_array(number, on.names[value])


def _emit(graph: Graph, on: Emission) -> None:
    """Emit the ONNX nodes of all nodes of the graph."""
    missing: dict[str, list[Node]] = {}
    for node in graph.nodes:
        names = [on.names[value] for value in node.inputs if value in on.names]
        rule = rule_of(node)
        if rule is None:
            missing.setdefault(f"op {node.op.name}", []).append(node)
        elif len(names) < len(node.inputs):
            _note_unheld(node, on, missing)
        else:
            on.scope = node.scope
            emitted = rule(node, on, *names)
            found = [emitted] if isinstance(emitted, str) else emitted
            held = zip(node.outputs, found, strict=True)
            on.names.update((value, name) for value, name in held if name is not None)
    for value in graph.outputs.values():
        if value not in on.names and not missing:
            missing.setdefault(_output(value), []).append(value.producer)
    if missing:
        raise OnnxError(_told(missing))


def rule_of(node: Node) -> Rule | None:
    """Return the export rule of a node's op, or that of its kind of ops, else None."""
    if node.op.name in RULES:
        return RULES[node.op.name]
    if isinstance(node.op, AxisMap):
        return by_table
    is_plain = isinstance(node.op, Elementwise) and len(node.outputs) == 1
    return by_expression if is_plain else None


def _note_unheld(node: Node, on: Emission, missing: dict[str, list[Node]]) -> None:
    """Record outputs that a node uses and ONNX cannot represent.

    Outputs of ops without an export rule are recorded elsewhere.
    """
    for value in node.inputs:
        if value not in on.names and rule_of(value.producer) is not None:
            missing.setdefault(_output(value), []).append(value.producer)


def _output(value: Value) -> str:
    op = value.producer.op
    return f"output {op.output_name(value.index)} of {op.name}"


def _told(missing: dict[str, list[Node]]) -> str:
    rows = [f"{what} ({len(nodes)}, first {nodes[0].label!r})" for what, nodes in missing.items()]
    return (
        f"ONNX cannot represent {'; '.join(rows)}; save outputs that do not need them, such as "
        "the loss of a forward graph"
    )


def _name_outputs(graph: Graph, on: Emission, outputs: dict[str, str]) -> None:
    """Rename tensors to the names of the graph's outputs.

    A tensor that is already named as another output is copied.
    """
    made = {name for node in on.nodes for name in node.output}
    renamed: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    for name, value in graph.outputs.items():
        have = on.names[value]
        if have in made and have not in renamed:
            renamed[have] = outputs[name]
        else:
            copies.append((have, outputs[name]))
    on.renamed(renamed)
    for have, want in copies:
        node = helper.make_node("Identity", [renamed.get(have, have)], [want], name=want)
        on.nodes.append(node)
