"""Times of exchanges against rounds played through, and a rank's step against its nodes."""

import math

import pytest

import graphc as g
from graphc.devices.links import Link, Links, links_of
from graphc.plans.cost_model import CostModel
from graphc.plans.exchange_times import ALGORITHMS, all_reduce_link, exchange_seconds, least
from graphc.plans.rank_model import model_rank

LINK = Link(3e-6, 1e9)
LINKS = Links(LINK, 8, Link(2e-5, 1e8))
SIZE = 1 << 20


def played_ring(ranks, size, link):
    """The rounds of a reduce-scatter in a ring: in each, every rank sends a block to the next."""
    held = [{rank} for rank in range(ranks)]  # whose terms the block that a rank sends next has
    seconds = 0.0
    while len(held[0]) < ranks:
        held = [held[rank - 1] | {rank} for rank in range(ranks)]
        seconds += link.seconds(1, size / ranks)
    return seconds


def played_tree(ranks, size, link):
    """Rounds in which half of those that are left send all to the other half, in small pieces: the
    bytes of a round go beside those of the others."""
    left, latencies = ranks, 0
    while left > 1:
        left, latencies = -(-left // 2), latencies + 1
    return link.seconds(latencies, size)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("passes", [1.0, 2.0])
def test_rings_and_trees_take_as_long_as_their_rounds(ranks, passes):
    ring, tree = (ALGORITHMS[name](passes, SIZE, ranks, LINKS) for name in ("ring", "tree"))
    assert ring == pytest.approx(passes * played_ring(ranks, SIZE, LINK))
    assert tree == pytest.approx(passes * played_tree(ranks, SIZE, LINK))


def test_machines_sum_within_and_exchange_a_part_between():
    found = ALGORITHMS["machines"](2.0, SIZE, 32, LINKS)
    between = min(f(4, SIZE / 8, LINKS.between) for f in (played_ring, played_tree))
    assert found == pytest.approx(2 * (played_ring(8, SIZE, LINK) + between))
    assert least(2.0, SIZE, 32, LINKS) == found < ALGORITHMS["ring"](2.0, SIZE, 32, LINKS)


def test_one_rank_exchanges_nothing():
    assert [form(2.0, SIZE, 1, LINKS) for form in ALGORITHMS.values()] == [0.0] * 3
    assert all_reduce_link(1, LINKS).latency == 0.0


@pytest.mark.parametrize("ranks", [2, 8, 64, 4096])
def test_the_link_of_an_all_reduce_gives_back_small_and_large_ones(ranks):
    link = all_reduce_link(ranks, links_of(g.plan(outputs=[g.input("x", (1,)) + 1.0]).device))
    links = links_of(g.plan(outputs=[g.input("x", (1,)) + 1.0]).device)
    for size in (0, 2**30):
        assert link.seconds(1, size) == pytest.approx(least(2.0, size, ranks, links))


def chain(x, count):
    for _ in range(count):
        x = g.tanh(x)
    return x


@pytest.mark.parametrize("count", [0, 1, 400])
def test_nodes_between_the_ends_of_a_collective_hide_it(count):
    x = g.input("x", (1000, 1000))
    begun = g.all_reduce(x, 2)
    plan = g.plan(
        outputs={"beside": chain(g.input("y", (1000, 1000)), count), "sum": begun}, reorder=False
    ) if count else g.plan(outputs={"sum": begun}, reorder=False)  # fmt: skip
    nodes, costs = plan.graph.nodes, CostModel.of(plan)
    (collective,) = (n for n in nodes if n.op.sends)
    (arrival,) = (n for n in nodes if n.op.awaits)
    first, last = nodes.index(collective), nodes.index(arrival)
    took = exchange_seconds(collective, links_of(plan.device))
    inside = math.fsum(costs.seconds(node) for node in nodes[first + 1 : last])
    outside = math.fsum(costs.seconds(node) for node in (*nodes[:first], *nodes[last:]))
    found = model_rank(plan)
    assert found.seconds == pytest.approx(outside + max(inside, took))
    assert found.exchange_seconds == took
    assert found.hidden == pytest.approx(min(inside / took, 1.0))
    assert (found.exchanges, found.sent_bytes) == (1, x.type.bytes)


def test_plans_of_one_rank_have_no_exchanges():
    plan = g.plan(outputs=[chain(g.input("x", (8, 8)), 3)])
    found = model_rank(plan)
    assert (found.exchanges, found.sent_bytes, found.hidden) == (0, 0, 1.0)
    assert found.seconds == found.computing_seconds > 0
    assert "collectives" not in plan.text()
