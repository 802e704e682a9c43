"""Copies of a forward graph on slices of its inputs, against the graph run on each slice alone."""

import numpy as np
import pytest
from properties.oracle import fresh, initial_states, run_unplanned

import graphc as g
from graphc.ir.builder import trace
from graphc.passes.micro_batches import micro_batches
from graphc.passes.modes import number_streams

COUNTS = (1, 2, 3, 5)


def network():
    """Two parameters, a default, integers, and outputs of several shapes."""
    x, t = g.input("x", (4, 6)), g.input("t", (4,), "int32")
    h = g.tanh(g.linear(x, 5, name="a")) * g.input("gain", (), default=0.5)
    logits = g.linear(h, 3, name="b")
    return trace({"loss": g.softmax_cross_entropy(logits, t), "logits": logits, "x": x})


def random_inputs(graph, seed):
    drawn = np.random.default_rng(seed)
    found = {}
    for source in graph.inputs:
        if source.default is not None:
            found[source.name] = np.asarray(source.default, source.type.dtype.numpy)
        elif source.type.dtype.kind == "int":
            found[source.name] = drawn.integers(0, 3, source.shape).astype(np.int32)
        else:
            found[source.name] = drawn.standard_normal(source.shape).astype(np.float32)
    return found


def aligned(array):
    found = fresh(g.input("any", array.shape, array.dtype).type)
    found[...] = array
    return found


def with_slices(batch):
    """A copy with what makes its inputs."""
    return trace(batch.graph.outputs)


def run(graph, given):
    states = {s: aligned(array) for s, array in initial_states(graph).items()}
    sources = states | {s: aligned(given[s.name]) for s in graph.inputs}
    arrays = run_unplanned(graph, sources)
    return {name: arrays[value] for name, value in graph.outputs.items()}


@pytest.mark.parametrize("count", COUNTS)
def test_each_copy_computes_the_graph_of_its_slice(count):
    graph = network()
    alone = [random_inputs(graph, seed) for seed in range(count)]
    together = {
        s.name: np.stack([given[s.name] for given in alone])
        if count > 1 and s.default is None
        else alone[0][s.name]
        for s in graph.inputs
    }
    batches = list(micro_batches(graph, count))
    assert len(batches) == count
    for batch, given in zip(batches, alone, strict=True):
        found, expected = run(with_slices(batch), together), run(graph, given)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("count", COUNTS)
def test_inputs_have_one_more_axis_and_states_are_shared(count):
    graph = network()
    batches = list(micro_batches(graph, count))
    whole = {s for batch in batches for s in with_slices(batch).inputs}
    axis = () if count == 1 else (count,)
    assert {(s.name, s.shape) for s in whole} == {
        ("x", (*axis, 4, 6)), ("t", (*axis, 4)), ("gain", ())
    }  # fmt: skip
    assert len(whole) == 3
    assert all(set(batch.graph.states) == set(graph.states) for batch in batches)


def test_one_micro_batch_is_the_graph():
    graph = network()
    (batch,) = micro_batches(graph, 1)
    assert batch.graph is graph
    assert batch.nodes == {node: node for node in graph.nodes}


@pytest.mark.parametrize("count", COUNTS[1:])
def test_every_node_has_one_copy_a_micro_batch(count):
    graph = network()
    copies = []
    for batch in micro_batches(graph, count):
        assert list(batch.nodes) == list(graph.nodes)
        assert batch.graph.nodes == tuple(batch.nodes.values())
        slices = set(with_slices(batch).nodes) - set(batch.graph.nodes)
        assert sorted(n.op.name for n in slices) == ["reshape", "reshape", "slice", "slice"]
        for node, copy in batch.nodes.items():
            assert (copy.op, copy.attributes, copy.output_types, copy.scope, copy.phase) == (
                node.op, node.attributes, node.output_types, node.scope, node.phase
            )  # fmt: skip
        copies += batch.nodes.values()
    assert len({*copies, *graph.nodes}) == (count + 1) * len(graph.nodes)


@pytest.mark.parametrize("count", COUNTS)
def test_no_two_random_nodes_draw_from_one_stream(count):
    x = g.input("x", (4, 6))
    loss = g.mean(g.dropout(g.relu(g.dropout(x, 0.5)), 0.25) + g.dropout(x, 0.1))
    graph = number_streams(trace({"loss": loss}))
    own = [n.attributes.stream for n in graph.nodes if n.op.name == "dropout"]
    assert len(set(own)) == 3
    streams = [
        node.attributes.stream
        for batch in micro_batches(graph, count)
        for node in batch.graph.nodes
        if node.op.name == "dropout"
    ]
    assert len(streams) == len(set(streams)) == 3 * count
    assert streams[:3] == own


def test_a_recomputed_node_is_a_copy_of_the_copy_in_its_micro_batch():
    graph = g.parse_graph(COPIED)
    for batch in micro_batches(graph, 3):
        original, copy = (batch.nodes[n] for n in graph.nodes if n.op.name == "tanh")
        assert copy.copy_of is original
        assert copy.level == 1


COPIED = """graph {
  %x: f32[4] = input()
  %0: f32[4] = tanh(%x)
  %0.m1: f32[4] = tanh(%x) [mirror]
  %1: f32[4] = mul(%0, %0.m1)
  output loss = %1
}
"""


def test_a_copy_is_made_when_it_is_asked_for():
    """What is made between two copies runs between them: serial numbers say so."""
    serials = []
    for batch in micro_batches(network(), 3):
        between = g.relu(batch.graph.outputs["logits"]).node
        own = [n.serial for n in batch.graph.nodes]
        serials += [min(own), max(own), between.serial]
    assert serials == sorted(serials)
