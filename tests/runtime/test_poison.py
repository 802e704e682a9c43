"""Which bytes are poisoned, replayed byte by byte beside the nodes of a step."""

import math

import numpy as np
import pytest

import graphc as g
from graphc.models import lstm
from graphc.runtime.poison import POISON, empty_at_start, freed_after


def small_mlp():
    x, t = g.input("x", (6, 5)), g.input("t", (6,), "int32")
    h = g.batch_norm(g.relu(g.linear(x, 8, name="a")))
    h = g.concat([g.tanh(g.linear(h, 4, name="b")), g.gelu(g.linear(h, 3, name="c"))], 1)
    return g.softmax_cross_entropy(g.linear(g.dropout(h, 0.3), 4, name="d"), t)


def small_lstm():
    return lstm(seq_len=3, batch=2, layers=2, hidden=5, inputs=3, classes=4)


def bytes_of(plan, value):
    """The bytes in which a value's elements lie, one by one."""
    strides = plan.placements[value].strides
    size, first = value.type.dtype.itemsize, plan.address(value)
    if strides is None:
        return np.arange(first, first + value.type.bytes)
    index = np.indices(value.shape).reshape(len(value.shape), math.prod(value.shape))
    starts = first + np.array(strides, int) @ index
    return (starts[:, None] + np.arange(size)).reshape(-1)


def buffer_bytes(buffer):
    return np.arange(buffer.offset, buffer.offset + buffer.bytes)


def marked(plan, spans):
    """A mask of the arena; spans are in order, and no two of them touch the same byte."""
    mask = np.zeros(plan.arena_bytes, bool)
    for first, last in spans:
        assert 0 <= first < last <= plan.arena_bytes
        assert not mask[first:last].any()
        mask[first:last] = True
    return mask


def last_reads(plan):
    """Value → the last step that reads it or a view of it; outputs and states outlive them all."""
    graph, end = plan.graph, len(plan.graph.nodes)
    last = {value: max(graph.uses[value], default=-1) for value in graph.values}
    last |= dict.fromkeys((*graph.outputs.values(), *graph.states), end)
    for node in reversed(graph.nodes):
        for value in node.outputs:
            source = plan.placements[value].over
            if source is not None and plan.placements[value].how == "view":
                last[source] = max(last[source], last[value])
        for state in node.replaced:
            last[state] = end
    return last


CASES = [
    (small_mlp, {}),
    (small_mlp, {"allocate": "none"}),
    (small_mlp, {"allocate": "sharing"}),
    (small_mlp, {"recompute": "sublinear", "allocate": "inplace"}),
    (small_lstm, {"recompute": "sublinear"}),
    (small_lstm, {"alignment": 16}),
]


@pytest.mark.parametrize(("network", "options"), CASES)
def test_at_the_start_all_but_states_and_feeds_is_empty(network, options):
    plan = g.plan(network(), optimizer=g.optim.Adam(0.1), **options)
    filled = np.zeros(plan.arena_bytes, bool)
    for source in (*plan.graph.states, *plan.graph.inputs):
        filled[bytes_of(plan, source)] = True
    empty = marked(plan, empty_at_start(plan))
    assert not (empty & filled).any()
    rest = ~empty & ~filled  # what a buffer of a state or a feed has beyond it
    for buffer in plan.buffers:
        if buffer.kind in ("state", "input"):
            rest[buffer_bytes(buffer)] = False
    assert not rest.any()
    assert 0 < empty.sum() < plan.arena_bytes


@pytest.mark.parametrize(("network", "options"), CASES)
def test_only_dead_bytes_are_poisoned(network, options):
    """A node's outputs fill their bytes, what is freed behind it is poisoned again."""
    plan = g.plan(network(), optimizer=g.optim.Adam(0.1), **options)
    last, freed = last_reads(plan), freed_after(plan)
    poisoned = marked(plan, empty_at_start(plan))
    written, count = list(plan.graph.sources), 0
    for step, node in enumerate(plan.graph.nodes):
        for value in node.inputs:
            assert not poisoned[bytes_of(plan, value)].any(), (step, value)
        written += node.outputs
        for value in node.outputs:
            poisoned[buffer_bytes(plan.buffers[plan.placements[value].buffer])] = False
        if node in plan.workspaces:
            poisoned[buffer_bytes(plan.workspaces[node])] = False
        spans = freed.get(step, [])
        poisoned |= marked(plan, spans)
        count += len(spans)
        needed = np.zeros(plan.arena_bytes, bool)
        for value in written:
            if last[value] > step:
                assert not poisoned[bytes_of(plan, value)].any(), (step, value)
                needed[buffer_bytes(plan.buffers[plan.placements[value].buffer])] = True
        assert not (~poisoned & ~needed).any(), step
    assert count > len(plan.graph.nodes) / 2
    for value in plan.graph.outputs.values():
        assert not poisoned[bytes_of(plan, value)].any()


def test_nothing_is_freed_of_states_and_outputs():
    plan = g.plan(small_mlp(), optimizer=g.optim.Adam(0.1))
    freed = np.zeros(plan.arena_bytes, bool)
    for step, spans in freed_after(plan).items():
        if step < len(plan.graph.nodes):
            freed |= marked(plan, spans)
    for state in plan.graph.states:
        assert not freed[bytes_of(plan, state)].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_poisoned_float_is_nan(dtype):
    type = g.input("x", (), dtype).type
    assert np.isnan(np.full(type.bytes, POISON, np.uint8).view(type.dtype.numpy)).all()


def test_an_arena_of_nothing_but_states_has_nothing_empty():
    """States in one piece from the first byte to the last; no node, so that nothing is freed."""
    weight = g.parameter("w", (64,))
    plan = g.plan(outputs={"w": weight})
    assert [b.kind for b in plan.buffers] == ["state"]
    assert empty_at_start(plan) == []
    assert all(step >= len(plan.graph.nodes) for step in freed_after(plan))
