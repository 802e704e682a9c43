"""Batch norms over all ranks, against one process on the joint batch."""

import itertools

import numpy as np
import pytest
from passes.test_data_parallel import drawn, mlp, norms, trained

import graphc as g
from graphc.errors import OptionError
from graphc.models import preact_resnet
from graphc.ops.collective import AllGather, ReduceScatter


def maps(batch, dtype="float64"):
    """Two convolutions with norms, and a head."""
    h, labels = g.input("x", (batch, 3, 6, 6), dtype), g.input("labels", (batch,), "int32")
    for layer in range(2):
        with g.scope(f"layer{layer}"):
            h = g.relu(g.batch_norm(g.conv2d(h, 4, 3, padding=1)))
    return g.softmax_cross_entropy(g.linear(g.mean(h, (2, 3)), 5), labels)


NETWORKS = {
    "rows": norms,
    "maps": maps,
    "preact_resnet": lambda batch: preact_resnet(11, batch=batch, image=8, dtype="float64"),
}
QUICK = [("rows", 3, 2), ("maps", 2, 1), ("maps", 3, 2)]
ALL = itertools.product(NETWORKS, (2, 3), (1, 2))


@pytest.mark.parametrize(
    ("name", "ranks", "accumulate"),
    [pytest.param(*c, marks=[] if c in QUICK else pytest.mark.slow) for c in ALL],
)
def test_ranks_normalise_as_one_process_does_its_joint_batch(name, ranks, accumulate):
    build, options = NETWORKS[name], {"optimizer": g.optim.SGD(0.1), "accumulate": accumulate}
    plan = g.plan(build(4), ranks=ranks, sync_norm=True, **options)
    feeds, joint = drawn(plan.graph, ranks, int(accumulate > 1))
    one = g.compile(build(4 * ranks), **options)
    losses = [float(one.step(each)["loss"]) for each in joint]
    for found, states in trained(plan, feeds, ranks):
        np.testing.assert_allclose(found, losses, rtol=1e-12)
        for key, state in one.states.items():
            np.testing.assert_allclose(states[key], state, rtol=1e-11, atol=1e-13)


def test_ranks_of_their_own_statistics_do_not():
    plan = g.plan(norms(4), ranks=2, optimizer=g.optim.SGD(0.1))
    feeds, joint = drawn(plan.graph, 2, 0)
    one = g.compile(norms(8), optimizer=g.optim.SGD(0.1))
    losses = [float(one.step(each)["loss"]) for each in joint]
    assert abs(trained(plan, feeds, 2)[0][0][0] - losses[0]) > 1e-3


@pytest.mark.parametrize("name", ["maps", pytest.param("preact_resnet", marks=pytest.mark.slow)])
def test_no_plan_changes_a_bit(name):
    found = {}
    for options in (
        {}, {"allocate": "none"}, {"recompute": "cheap"}, {"shard": "states"}, {"reorder": False}
    ):  # fmt: skip
        optimizer = g.optim.SGD(0.1)
        plan = g.plan(NETWORKS[name](2), ranks=2, sync_norm=True, optimizer=optimizer, **options)
        assert plan.recomputation.nodes > 0 or options.get("recompute") is None
        feeds, _ = drawn(plan.graph, 2, 0)
        losses, states = trained(plan, feeds, 2)[0]
        found[str(options)] = losses, {key: state.tobytes() for key, state in states.items()}
    assert found == dict.fromkeys(found, found["{}"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_statistics_are_float32_in_mixed_precision(precision):
    options = {"optimizer": g.optim.SGD(0.1), "precision": precision}
    plan = g.plan(maps(2, "float32"), ranks=2, sync_norm=True, **options)
    gathered = [n for n in plan.graph.nodes if isinstance(n.op, AllGather)]
    assert {n.output.type.dtype.name for n in gathered} == {"float32"}
    feeds, _ = drawn(plan.graph, 2, 0)
    assert np.isfinite(trained(plan, feeds, 2)[0][0]).all()


def test_a_norm_is_one_exchange_each_way():
    """Its joint statistics are averaged no second time, as those of each rank's own are."""
    reduced = {}
    for syncs in (False, True):
        plan = g.plan(norms(4), ranks=2, sync_norm=syncs, optimizer=g.optim.SGD(0.1))
        kinds = [type(node.op) for node in plan.graph.nodes]
        assert (kinds.count(AllGather), kinds.count(ReduceScatter)) == (syncs, syncs)
        reduced[syncs] = sum(n.op.longest(n) for n in plan.graph.nodes if n.op.name == "all_reduce")
    running = sum(s.type.bytes for s in plan.graph.states if s.role == "statistic")
    assert running == 2 * 7 * 8
    assert reduced[False] - reduced[True] == running


def test_one_rank_and_networks_without_norms_have_the_plan_without_it():
    for build, ranks in ((norms, 1), (mlp, 2)):
        plans = [
            g.plan(build(4), ranks=ranks, optimizer=g.optim.SGD(), sync_norm=sync)
            for sync in (False, True)
        ]
        assert g.format_graph(plans[0].graph) == g.format_graph(plans[1].graph)


def test_it_belongs_to_training():
    with pytest.raises(OptionError, match="sync_norm applies only to training"):
        g.plan(outputs=[g.input("x", (3,))], sync_norm=True)
