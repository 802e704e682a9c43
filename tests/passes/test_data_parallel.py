"""Steps of several ranks against one process on their joint batch."""

import functools
import itertools

import numpy as np
import pytest
from runtime.ranks.threads import on_ranks

import graphc as g
from graphc import Program
from graphc.errors import OptionError, RanksError
from graphc.memory.zero_copy import is_bucket
from graphc.models import gpt2, lstm, preact_resnet
from graphc.ops.changed_state import with_changes
from graphc.ops.collective import Arrival, Collective
from graphc.passes.data_parallel import DataParallel
from graphc.plans.cost_model import CostModel
from graphc.runtime.ranks.lane import Lane

STEPS = 4


def mlp(batch, dtype="float64"):
    h = g.input("x", (batch, 8), dtype)
    labels = g.input("labels", (batch,), "int32")
    for layer in range(3):
        with g.scope(f"layer{layer}"):
            h = g.relu(g.linear(h, 16))
    with g.scope("output"):
        return g.softmax_cross_entropy(g.linear(h, 5), labels)


def norms(batch):
    """A batch norm over equal batches, so that statistics of ranks and of all are the same."""
    h = g.input("x", (batch, 6), "float64")
    labels = g.input("labels", (batch,), "int32")
    with g.scope("layer"):
        h = g.batch_norm(g.linear(h, 7))
    return g.softmax_cross_entropy(g.linear(h, 5), labels)


NETWORKS = {
    "mlp": mlp,
    "lstm": lambda batch: lstm(3, batch, 2, 8, 4, 5, "float64"),
    "gpt2": lambda batch: gpt2(
        layers=2, width=16, heads=2, seq_len=8, batch=batch, vocab=20, drop=0.0, dtype="float64"
    ),
}

HOWS = {
    "sgd": {"optimizer": g.optim.SGD(0.1, momentum=0.9)},
    "clipped adam": {"optimizer": g.optim.Adam(1e-2), "clip_norm": 0.1},
    "accumulated": {"optimizer": g.optim.SGD(0.1), "accumulate": 2},
}


def drawn(graph, ranks, axis, steps=STEPS):
    """Feeds of all steps by rank, and joined along the axis of the batch."""
    rng = np.random.default_rng(0)
    by_rank, joint = [], []
    for _ in range(steps):
        feeds = [
            {
                x.name: rng.integers(0, 5, x.shape).astype(np.int32)
                if x.type.dtype.kind == "int"
                else rng.normal(size=x.shape).astype(x.type.dtype.numpy)
                for x in graph.inputs
                if x.default is None
            }
            for _ in range(ranks)
        ]
        by_rank.append(feeds)
        joint.append({n: np.concatenate([f[n] for f in feeds], axis) for n in feeds[0]})
    return by_rank, joint


def trained(plan, feeds, ranks, **settings):
    def work(wire):
        program = Program(plan, poison=True, lane=Lane(wire), **settings)
        losses = [float(program.step(each[wire.rank])["loss"]) for each in feeds]
        return losses, dict(program.states)

    return on_ranks(ranks, work)


QUICK = [
    ("mlp", "clipped adam", 3), ("mlp", "accumulated", 2), ("lstm", "accumulated", 3),
    ("gpt2", "sgd", 2),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "how", "ranks"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(NETWORKS, HOWS, (2, 3))
    ],
)
def test_ranks_train_as_one_process_does_on_their_joint_batch(name, how, ranks):
    build, options = NETWORKS[name], HOWS[how]
    plan = g.plan(build(4), ranks=ranks, **options)
    axis = (name == "lstm") + (how == "accumulated")
    feeds, joint = drawn(plan.graph, ranks, axis)
    one = g.compile(build(4 * ranks), **options)
    losses = [float(one.step(each)["loss"]) for each in joint]
    found = trained(plan, feeds, ranks)
    np.testing.assert_allclose(found[0][0], losses, rtol=1e-12)
    for name, state in one.states.items():
        if "initial" not in name:  # of an LSTM, a row for each of a batch
            np.testing.assert_allclose(found[0][1][name], state, rtol=1e-11, atol=1e-13)
    for other in found[1:]:
        assert other[0] == found[0][0]
        for name, state in found[0][1].items():
            assert other[1][name].tobytes() == state.tobytes()


def test_running_statistics_are_the_mean_of_the_ranks():
    plan = g.plan(norms(4), optimizer=g.optim.SGD(0.1), ranks=2)
    (feeds,), _ = drawn(plan.graph, 2, 0, steps=1)
    alone = g.plan(norms(4), optimizer=g.optim.SGD(0.1))
    singles = []
    for each in feeds:
        program = g.Program(alone)
        program.step(each)
        singles.append(dict(program.states))
    for _, states in trained(plan, [feeds], 2):
        mean = (singles[0]["layer/norm/running_mean"] + singles[1]["layer/norm/running_mean"]) / 2
        np.testing.assert_allclose(states["layer/norm/running_mean"], mean, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kernels", ["numpy", pytest.param("native", marks=pytest.mark.slow)])
def test_no_plan_and_no_bucket_changes_a_bit(kernels, monkeypatch):
    build = lambda: preact_resnet(11, batch=2, image=8)  # noqa: E731
    plans = [
        g.plan(build(), optimizer=g.optim.SGD(0.01), ranks=2, kernels=kernels, **options)
        for options in ({}, {"allocate": "none"}, {"recompute": "cheap"}, {"reorder": False})
    ]
    for most in (1.0, 1e12):
        monkeypatch.setattr(DataParallel, "_bucket_bytes", lambda *_, most=most: most)
        plans.append(g.plan(build(), optimizer=g.optim.SGD(0.01), ranks=2, kernels=kernels))
    monkeypatch.undo()
    counts = {sum(isinstance(n.op, Collective) for n in plan.graph.nodes) for plan in plans}
    assert len(counts) > 2  # many buckets, few, and one
    feeds, _ = drawn(plans[0].graph, 2, 0)
    found = [trained(plan, feeds, 2)[0] for plan in plans]
    for losses, states in found[1:]:
        assert losses == found[0][0]
        for name, state in states.items():
            assert state.tobytes() == found[0][1][name].tobytes()


def test_one_rank_has_the_plan_without_ranks():
    plain, one = (g.plan(mlp(4), optimizer=g.optim.Adam(), **k) for k in ({}, {"ranks": 1}))
    assert plain.text() == one.text()


@functools.cache
def of_a_network():
    return g.plan(preact_resnet(20), optimizer=g.optim.SGD(), ranks=2)


def test_buckets_are_filled_without_copies_where_the_peak_stays():
    plan = of_a_network()
    graph = plan.graph
    whole = [node for node in graph.nodes if is_bucket(graph, node)]
    parts = [graph.roots[value] for node in whole for value in node.inputs]
    inside = sum(v.type.bytes for v in parts if plan.placements[v].how == "part")
    assert inside >= 0.9 * sum(value.type.bytes for value in parts)


def test_exchanges_run_beside_the_backward_pass():
    """Between beginning and end, other nodes take as long as the bytes, but for what comes last."""
    plan = of_a_network()
    nodes, seconds = plan.graph.nodes, CostModel.of(plan).seconds
    begins = [i for i, n in enumerate(nodes) if n.op.sends and n.output.type.elements > 1000]
    ends = {n.inputs[0].node: i for i, n in enumerate(nodes) if isinstance(n.op, Arrival)}
    assert len(begins) > 3
    for i in begins[:-1]:
        beside = sum(map(seconds, nodes[i + 1 : ends[nodes[i]]]))
        assert beside >= 0.9 * seconds(nodes[i])
    for i in begins:
        last = max(plan.graph.position[v.node] for v in nodes[i].inputs if v.node is not None)
        assert all(nodes[k].op.sends or nodes[k].op.views for k in range(last + 1, i))


def test_rows_of_gradients_are_sent_at_once_and_rows_of_parameters_awaited_late():
    """With three ranks rows are padded, which takes nodes that wait for nothing."""
    plan = g.plan(preact_resnet(20), optimizer=g.optim.SGD(), ranks=3, shard="states")
    nodes, position = plan.graph.nodes, plan.graph.position
    sent = [n for n in nodes if n.op.name == "reduce_scatter" and n.output.type.elements > 1000]
    assert len(sent) > 1
    for node in sent:
        parts = [value.root.node for value in node.inputs[0].node.inputs]
        last = max(position[part] for part in parts if part.inputs)
        between = nodes[last + 1 : position[node]]
        assert all(n.op.sends or n.op.views or n.op.gathers or not n.inputs for n in between)
    for node in (n for n in nodes if n.op.name == "all_gather"):
        (end,) = (position[n] for n in nodes if n.op.awaits and n.inputs[0] is node.output)
        behind = itertools.dropwhile(lambda n: n.op.views, nodes[end + 1 :])
        assert any(value.root is nodes[end].output for value in next(behind).inputs)


def test_exchanges_of_a_network_may_depend_on_each_other():
    x = g.input("x", (4, 8), "float64")
    with g.scope("first"):
        h = g.linear(x, 6)
    y = g.linear(g.all_gather(g.reduce_scatter(h, 2), 2), 6)
    outputs = {"norm": g.sqrt(g.all_reduce(g.sum(g.all_reduce(y, 2) * y), 2))}
    loss = g.mean(g.all_reduce(g.tanh(y), 2))
    options = {"outputs": outputs, "optimizer": g.optim.SGD(0.1), "ranks": 2}
    plans = [g.plan(loss, **options, **more) for more in ({}, {"reorder": False})]
    feeds, _ = drawn(plans[0].graph, 2, 0)
    first, other = (trained(plan, feeds, 2) for plan in plans)
    assert first[0][0] == first[1][0] == other[0][0]


def test_a_budget_holds_for_a_rank():
    build = lambda: preact_resnet(11, batch=8)  # noqa: E731
    options = {"optimizer": g.optim.SGD(), "ranks": 2, "kernels": "numpy"}
    budget = g.plan(build(), **options).arena_bytes * 3 // 4
    plan = g.plan(build(), **options, budget=budget)
    assert plan.arena_bytes <= budget


def test_each_rank_draws_masks_of_its_own_and_saves_one_file(tmp_path):
    x = g.input("x", (64,), "float64")
    loss = g.mean(g.dropout(x * g.parameter("w", (64,), "float64"), 0.5))
    plan = g.plan(loss, outputs={"y": g.dropout(x, 0.5)}, optimizer=g.optim.SGD(0.1), ranks=2)
    ones = np.ones(64)

    def work(wire):
        program = Program(plan, lane=Lane(wire))
        first = program.step(x=ones)["y"]
        program.save(tmp_path / "both.safetensors")
        second = program.step(x=ones)["y"]
        program.load(tmp_path / "both.safetensors")
        assert program.step(x=ones)["y"].tobytes() == second.tobytes()
        return first

    first, other = on_ranks(2, work)
    assert (first != other).any()
    alone = g.compile(loss, outputs={"y": g.dropout(x, 0.5)}, optimizer=g.optim.SGD(0.1))
    alone.load(tmp_path / "both.safetensors")


def test_ranks_with_other_plans_refuse_to_start():
    plans = [g.plan(mlp(4), optimizer=g.optim.SGD(rate), ranks=2) for rate in (0.1, 0.2)]

    def work(wire):
        with pytest.raises(
            RanksError, match="ranks 1 have another plan, seed or rank_timeout than rank 0"
        ):
            Program(plans[wire.rank], lane=Lane(wire))

    on_ranks(2, work)


def test_options_that_exclude_ranks_are_refused():
    with pytest.raises(OptionError, match="ranks applies only to training"):
        g.plan(outputs=[g.input("x", (3,))], ranks=2)
    with pytest.raises(OptionError, match="omit streams or ranks"):
        g.plan(mlp(4), optimizer=g.optim.SGD(), ranks=2, streams=2)
    with pytest.raises(RanksError, match="the plan is for 3 ranks, but this is rank 0 of 1"):
        g.compile(mlp(4), optimizer=g.optim.SGD(), ranks=3)


def test_float_changes_of_states_are_averaged_over_ranks():
    """A count has its rank's integers; what is made of them by the next step is no float of all."""
    x = g.input("x", (4, 3), "float64")
    seen = g.input("seen", (), "int64")
    count = g.parameter("count", (), "int64", trainable=False)
    rate = g.parameter("rate", (), "float64", trainable=False)
    loss = with_changes(g.mean(g.linear(x, 2)), [(count, seen), (rate, g.cast(count, "float64"))])
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), ranks=2)
    own = [{"x": np.ones((4, 3)), "seen": np.array(number)} for number in (0, 7)]

    def work(wire):
        program = Program(plan, lane=Lane(wire))
        for _ in range(2):
            program.step(own[wire.rank])
        return float(program.states["rate"])

    assert on_ranks(2, work) == [3.5, 3.5]
