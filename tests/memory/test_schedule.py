"""Execution sequences: the form in which every policy ends."""

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.errors import GraphError
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.memory.order.place_updates import place_updates
from graphc.memory.schedule import materialise, mirrored_sequence
from graphc.models import gpt2, mlp, preact_resnet
from graphc.plans.check.check_plan import check_plan

NETWORKS = {
    "mlp": lambda: mlp(layers=5, hidden=8, inputs=4, batch=2),
    "preact_resnet": lambda: preact_resnet(11, batch=2, image=8),
    "gpt2": lambda: gpt2(layers=2, width=8, heads=2, seq_len=4, batch=2, vocab=7),
}


def base_of(loss):
    return g.plan(loss, optimizer=g.optim.SGD(), reorder=False).graph


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_sequence_of_mirror_counts_is_algorithm_2(name, count):
    """The gradient pass with mirror counts and the sequence made from them: one graph."""
    with g.mirror(count):
        loss = NETWORKS[name]()
    forward = g.plan(loss, training=True, reorder=False).graph
    weights = [state for state in forward.states if state.trainable]
    plain = g.gradient(forward.outputs["loss"], weights)
    mirrored = g.gradient(forward.outputs["loss"], weights, lambda node: node.mirror)
    loss = forward.outputs["loss"]
    outputs = [
        {"loss": loss, **{f"d{i}": d for i, d in enumerate(found)}} for found in (plain, mirrored)
    ]
    base, required = (
        g.plan(outputs=named, training=True, reorder=False).graph for named in outputs
    )
    found = materialise(base, mirrored_sequence(base, lambda node: node.mirror))
    assert len(found.nodes) > len(base.nodes) or not count
    assert g.format_graph(found) == g.format_graph(required)


def random_sequence(graph, rng, repeats):
    """A legal schedule: base order with forward nodes computed again anywhere."""
    sequence = []
    seen = []
    for step, node in enumerate(graph.nodes):
        sequence.append(step)
        if not node.op.has_effect:
            seen.append(step)
        while seen and rng.random() < repeats:
            sequence.append(int(rng.choice(seen)))
    return sequence


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_random_legal_sequences_change_no_bit(name, seed):
    base = base_of(NETWORKS[name]())
    rng = np.random.default_rng(seed)
    graph = place_updates(materialise(base, random_sequence(base, rng, 0.3)))
    verify(graph)
    runs = []
    for ordered, strategy in ((base, "none"), (graph, "packed"), (graph, "sharing")):
        plan = Allocation(ordered).plan(strategy)
        check_plan(plan)
        program = Program(plan, poison=True)
        feeds = {
            x.name: np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
            if x.type.dtype.kind == "float"
            else np.random.default_rng(1).integers(0, 5, x.shape).astype(np.int32)
            for x in ordered.inputs
            if x.default is None
        }
        losses = [program.step(feeds)["loss"].tobytes() for _ in range(2)]
        runs.append((losses, {name: a.tobytes() for name, a in program.states.items()}))
    assert runs[0] == runs[1] == runs[2]


def test_uses_read_the_latest_appearance():
    x = g.input("x", (2,))
    graph = g.plan(outputs={"y": g.exp(g.tanh(x)) + g.tanh(x)}, fuse=False).graph
    names = [node.op.name for node in graph.nodes]
    assert names == ["tanh", "exp", "add"]
    found = materialise(graph, [0, 1, 0, 2])
    assert [n.phase for n in found.nodes] == ["forward", "forward", "mirror", "forward"]
    assert found.nodes[3].inputs == (found.nodes[1].output, found.nodes[2].output)
    assert found.nodes[2].copy_of is found.nodes[0]


def test_illegal_sequences():
    base = base_of(NETWORKS["mlp"]())
    whole = list(range(len(base.nodes)))
    update = next(step for step, node in enumerate(base.nodes) if node.op.has_effect)
    for sequence, message in (
        (whole[1:], "before"),
        (whole[:-1], "omits"),
        ([*whole, update], "twice"),
        ([*whole, len(whole)], "contains step"),
    ):
        with pytest.raises(GraphError, match=message):
            materialise(base, sequence)


def test_kept_values_are_not_computed_again():
    x = g.input("x", (4, 8))
    h = x
    for number in range(4):
        h = g.tanh(g.linear(h, 8, name=f"l{number}"))
        if number == 1:
            kept = g.keep(h)
    base = base_of(g.mean(h))
    assert len(base.kept) == 1
    assert kept.node.op.name == "tanh"
    sequence = mirrored_sequence(base, lambda node: 1)
    (step,) = (s for s, n in enumerate(base.nodes) if n.outputs and n.outputs[0] in base.kept)
    assert sequence.count(step) == 1
    assert len(sequence) > len(base.nodes)
