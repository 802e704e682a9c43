"""Runs without a plan: a fresh array for every value, views by NumPy's own rules."""

from __future__ import annotations

import numpy as np

from graphc.devices.device import CPU
from graphc.ir.types import as_dtype, outer_axes
from graphc.runtime.arena import aligned_bytes
from graphc.runtime.cpu.bind import bind_node, numpy_settings
from graphc.runtime.initial import fill_initial


def cut(a, x):
    index = (slice(None),) * a.axis
    stops = np.cumsum(a.sizes).tolist()
    return [x[(*index, slice(stop - n, stop))] for n, stop in zip(a.sizes, stops, strict=True)]


def reshaped(a, x):
    try:
        return [np.reshape(x, a.shape, copy=False)]
    except ValueError:
        return None


VIEWS = {
    "reshape": reshaped,
    "transpose": lambda a, x: [np.transpose(x, a.permutation)],
    "broadcast_to": lambda a, x: [np.broadcast_to(x, a.shape)],
    "slice": lambda a, x: [x[tuple(map(slice, a.starts, a.stops, a.steps))]],
    "split": cut,
    "bitcast": lambda a, x: [x.view(as_dtype(a.dtype).numpy)],
    "stop_gradient": lambda a, x: [x],
}


def fresh(type):
    """An uninitialised array of its own, aligned like the arena."""
    return aligned_bytes(type.bytes).view(type.dtype.numpy).reshape(type.shape)


def run_unplanned(graph, sources):
    """The arrays of all values; an updated state is a new array under its update's output."""
    arrays = dict(sources)
    with numpy_settings():
        for node in graph.nodes:
            shown = None
            if node.op.views is not None:
                shown = VIEWS[node.op.name](node.attributes, arrays[node.inputs[0]])
            if shown is not None:
                arrays.update(zip(node.outputs, shown, strict=True))
                continue
            arrays |= {value: fresh(value.type) for value in node.outputs}
            strides = {v: arrays[v].strides for v in node.inputs}
            strided = {v: given for v, given in strides.items() if outer_axes(v.type, given)}
            workspace = [fresh(type) for type in node.op.workspace(node, CPU, strided)]
            for call in bind_node(node, arrays, workspace, strided):
                call()
    return arrays


def initial_states(graph, seed=0):
    states = {}
    for state in graph.states:
        states[state] = np.empty(state.shape, state.type.dtype.numpy)
        fill_initial(state, seed, states[state])
    return states


def sources_of(graph, states, feed):
    """States by value, and feeds or defaults of all inputs."""
    sources = dict(states)
    for source in graph.inputs:
        given = feed.get(source.name, source.default)
        sources[source] = np.asarray(given, source.type.dtype.numpy)
    return sources


def run_plain(graph, feeds, seed=0):
    """Steps without a plan: outputs of each, and the final states by name, without constants."""
    states = initial_states(graph, seed)
    results = []
    for feed in feeds:
        arrays = run_unplanned(graph, sources_of(graph, states, feed))
        results.append({name: arrays[value].copy() for name, value in graph.outputs.items()})
        for node in graph.effects:
            inputs, outputs = node.named_inputs(), node.named_outputs()
            for output, state in node.op.must_overwrite.items():
                states[inputs[state]] = arrays[outputs[output]].copy()
    return results, {s.name: array for s, array in states.items() if s.role != "constant"}
