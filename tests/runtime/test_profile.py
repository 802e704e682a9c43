"""Measuring: every node once, keys together, inputs that the ops accept. No time is asserted."""

from collections import Counter

import numpy as np
import pytest

import graphc as g
from graphc.errors import GpuUnavailable, OptionError
from graphc.models import gpt2, mlp, mobilenet_v2
from graphc.plans.costs import node_key
from graphc.runtime.feeds import random_feeds
from graphc.runtime.host_link import measured_link
from graphc.runtime.profile import machine

NETWORKS = {
    "mlp": lambda: mlp(layers=3, hidden=8, inputs=6, batch=4),
    "gpt2": lambda: gpt2(layers=2, width=16, heads=2, seq_len=8, batch=2, vocab=11, drop=0.1),
    "mobilenet_v2": lambda: mobilenet_v2(batch=1, image=32, classes=3, width=0.25),
}
OPTIONS = {"optimizer": g.optim.Adam(), "clip_norm": 1.0, "accumulate": 2, "precision": "fp16"}


@pytest.mark.parametrize(
    "name", ["mlp", "gpt2", pytest.param("mobilenet_v2", marks=pytest.mark.slow)]
)
def test_every_node_of_the_plan_is_measured_once(name):
    plan = g.plan(NETWORKS[name](), **OPTIONS)
    costs = g.profile(plan, repeat=2)
    counts = Counter(node_key(node) for node in plan.graph.nodes)
    assert {entry.key: entry.count for entry in costs.measured} == counts
    assert [entry.key for entry in costs.measured] == list(counts)  # by first appearance
    nodes = {node_key(node): node for node in plan.graph.nodes}
    for entry in costs.measured:
        cost = nodes[entry.key].op.cost(nodes[entry.key])
        assert (entry.op, entry.flops) == (nodes[entry.key].op.name, cost.flops)
        assert entry.bytes == cost.bytes_read + cost.bytes_written
    placed = plan.placements
    for node in plan.graph.nodes:
        if all(placed[value].how != "view" for value in node.outputs):
            (found,) = (e.seconds for e in costs.measured if e.key == node_key(node))
            assert found > 0, node


def test_views_take_no_time():
    x = g.input("x", (4, 6))
    plan = g.plan(g.sum(g.exp(g.reshape(x, (24,)))))
    seconds = {entry.op: entry.seconds for entry in g.profile(plan, 1).measured}
    assert seconds["reshape"] == 0 < seconds["exp"]


@pytest.mark.parametrize("both", [True, False])
def test_rates_are_those_of_the_copies(both):
    """Copies of known seconds, with and without a common limit for both directions."""

    def copies(size, out, back):
        seconds = [1e-5 + size / rate for rate, runs in ((2e10, out), (1e10, back)) if runs]
        return max(seconds) if both else sum(seconds)

    link = measured_link(copies)
    assert (link.to_host, link.to_device, link.both_ways) == (2e10, 1e10, both)
    assert link.latency == pytest.approx(1e-5, rel=0.05)


def test_the_link_of_a_cpu_plans_copies():
    network = NETWORKS["gpt2"]()
    plain = g.plan(network, optimizer=g.optim.SGD())
    costs = g.profile(plain, repeat=1)
    assert 1e7 < costs.host_link.to_host < 1e13
    assert 0 < costs.host_link.latency < 1e-2
    options = {"budget": plain.arena_bytes, "host_budget": "1MiB", "costs": costs}
    assert g.plan(network, optimizer=g.optim.SGD(), **options).arena_bytes <= plain.arena_bytes


def test_a_plan_for_a_gpu_needs_one():
    plan = g.plan(NETWORKS["mlp"](), optimizer=g.optim.SGD(), device="h200")
    with pytest.raises(GpuUnavailable):
        g.profile(plan)


def test_the_file_says_where_and_plans_with_itself(tmp_path):
    loss = NETWORKS["mlp"]()
    costs = g.profile(g.plan(loss, optimizer=g.optim.SGD()), repeat=1)
    described = {"name": "cpu", "machine": machine(), "numpy": np.__version__, "kernels": "native"}
    assert costs.device == described
    costs.write(tmp_path / "costs.json")
    options = {"optimizer": g.optim.SGD(), "recompute": "recursive"}
    plans = [g.plan(loss, **options, costs=c) for c in (costs, tmp_path / "costs.json")]
    assert plans[0].recomputation == plans[1].recomputation
    assert plans[0].text() == plans[1].text()
    assert plans[0].recomputation.extra_time_fraction > 0


def test_integers_are_drawn_where_they_are_looked_up():
    rows = g.input("rows", (3, 200), "int32")
    labels = g.input("labels", (200,), "int64")
    free, flags = g.input("free", (5,), "uint8"), g.input("flags", (50,), "bool")
    wide = g.gather(g.parameter("w", (9, 4)), g.reshape(rows[1], (10, 20)))
    narrow = g.gather(g.parameter("v", (6, 4)), g.cast(rows, "int64"))
    loss = g.mean(wide) + g.mean(narrow)
    loss = loss + g.softmax_cross_entropy(g.parameter("logits", (200, 7)), labels)
    loss = loss + g.mean(g.one_hot(labels, 5)) + g.mean(g.cast(free, "float32"))
    loss = loss + g.mean(g.where(flags, 1.0 * g.parameter("f", (50,)), 0.5))
    plan = g.plan(loss, optimizer=g.optim.SGD(), accumulate=3)
    feeds = {source.name: array for source, array in random_feeds(plan.graph, 0).items()}
    tops = {name: (int(feeds[name].min()), int(feeds[name].max())) for name in feeds}
    assert tops["rows"] == (0, 5)
    assert tops["labels"] == (0, 4)
    assert tops["free"] == tops["flags"] == (0, 1)
    for source in plan.graph.inputs:
        assert feeds[source.name].shape == source.shape
        assert feeds[source.name].dtype == source.type.dtype.numpy
    assert feeds["learning_rate"] == np.float32(0.01)
    g.profile(plan, repeat=1)


def test_options_are_checked():
    plan = g.plan(g.mean(g.input("x", (2,))))
    for repeat in (0, 1.5, True):
        with pytest.raises(OptionError, match="repeat must be an integer of at least 1"):
            g.profile(plan, repeat)
    with pytest.raises(OptionError, match="seed must be"):
        g.profile(plan, seed=-1)
