"""Import of a file written by graphc as its original network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from onnx import ModelProto

from graphc.importing.network import InitialStates, Kind, Reported
from graphc.importing.roles import chosen_names
from graphc.importing.weights import Weight
from graphc.ir import builder
from graphc.ir.graph import Graph, State, Value
from graphc.ir.rewrite import Rewriter
from graphc.onnx.network import Network
from graphc.onnx.recorded import recorded
from graphc.onnx.rules.norm import by_batch
from graphc.onnx.weights import stored
from graphc.ops.batch_norm import BatchNorm

KINDS: Mapping[str, Kind] = {"parameter": "parameter", "statistic": "statistic"}
"""Role of a state → its kind in reports. States of other roles never change."""


def recorded_network(
    model: ModelProto,
    folder: str,
    trainable: bool | str | Collection[str] | None,
    weights: bool,
) -> Network | None:
    """Return the network recorded in a file.

    Returns None if the file has no record, or was modified since.
    """
    held = {tensor.name: stored(tensor, folder) for tensor in model.graph.initializer}
    found = recorded(model, lambda name: held[name].read())
    if found is None:
        return None
    states = dict(found.states)
    graph = _by_batch(found.graph) if found.training else found.graph
    graph = _with_choice(graph, states, chosen_names(trainable, held))
    named = {state.name: held[name] for name, state in states.items() if state.role in KINDS}
    inputs = dict(zip((x.name for x in model.graph.input), found.graph.inputs, strict=True))
    outputs = zip((value.name for value in model.graph.output), graph.outputs.values(), strict=True)
    return Network(
        inputs,
        dict(outputs),
        InitialStates(named if weights else {}),
        tuple(_reported(name, state, held[name]) for name, state in states.items()),
        {name: source.name for name, source in (inputs | states).items()},
        model.opset_import[0].version,
    )


def _by_batch(graph: Graph) -> Graph:
    """Expand batch norms to the nodes of a training step, which always use batch statistics."""
    norms = {node for node in graph.nodes if isinstance(node.op, BatchNorm)}
    if not norms:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node not in norms:
            rewriter.put(node, builder.copy(node, rewriter.values(node.inputs)))
            continue
        x, scale, bias, *_ = rewriter.values(node.inputs)
        with builder.in_phase("forward", node.scope, node.segment):
            y, _, _ = by_batch(x, scale, bias, node.attributes.epsilon)
        rewriter.stand(node.outputs[:1], (y,))
    for value in rewriter.kept:
        builder.keep(value)
    return builder.trace(rewriter.outputs)


def _with_choice(graph: Graph, states: dict[str, State], chosen: Collection[str] | None) -> Graph:
    """Make exactly the chosen parameters trainable, in the graph and in `states`."""
    if chosen is None:
        return graph
    standing: dict[Value, Value] = {}
    for name, state in states.items():
        if state.role == "parameter" and state.trainable != (name in chosen):
            standing[state] = states[name] = replace(state, trainable=name in chosen)
    rewriter = Rewriter(graph, standing)
    for node in graph.nodes:
        rewriter.put(node, rewriter.moved(node))
    return rewriter.result()


def _reported(name: str, state: State, weight: Weight) -> Reported:
    kind = KINDS.get(state.role, "constant")
    called = state.name if state.role in KINDS else None
    reason = "recorded by graphc"
    return Reported(name, kind, reason, weight.shape, str(weight.dtype), called, state.trainable)
