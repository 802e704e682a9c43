"""The model of a step with copies, against times computed by hand and by another simulation."""

import itertools
import math
import random

import pytest
from plans.with_copies import copied, random_trips

import graphc as g
from graphc.ir import builder
from graphc.memory.allocate import Allocation
from graphc.models import mlp
from graphc.ops.host_copy import begin_copy_to_device, begin_copy_to_host, finish_copy
from graphc.planner.host_link import HostLink
from graphc.plans.copy_model import model_copies
from graphc.plans.cost_model import CostModel
from graphc.plans.rank_model import model_rank
from graphc.target import CPU_TARGET

SIZE = 4 * 1000


class Costs(CostModel):
    """A second for each tanh, and half a second for each sin."""

    def seconds(self, node):
        return {"tanh": 1.0, "sin": 0.5}.get(node.op.name, 0.0)


def two_values():
    x = g.input("x", (1000,))
    a, b = g.tanh(x), g.sin(x)
    first, second = begin_copy_to_host(a), begin_copy_to_host(b)
    c = g.tanh(b)
    there, other = finish_copy(first), finish_copy(second)
    fetch = begin_copy_to_device(there)
    d = g.sin(c)
    back = finish_copy(fetch)
    final = finish_copy(begin_copy_to_device(other))
    graph = builder.trace({"y": back + d + final})
    return Allocation(graph, CPU_TARGET).plan("packed")


def test_copies_queue_for_the_link_and_the_step_waits_for_them():
    """Out at 2 s a value, back at 1 s, and 0.25 s for each copy besides."""
    plan = two_values()
    found = model_copies(plan, Costs(), HostLink(SIZE / 2, SIZE, 0.25))
    # tanh to 1, sin to 1.5; copies out run from 1.5 to 3.75 and to 6; tanh to 2.5; the first wait
    # lasts to 3.75, the second to 6. The copy back runs from 6 to 7.25, sin to 6.5, the wait to
    # 7.25. The last copy runs from there to 8.5.
    assert [(c.to, c.start, c.end, c.stall) for c in found.copies] == [
        ("host", 1.5, 3.75, 1.25),
        ("host", 3.75, 6.0, 2.25),
        ("device", 6.0, 7.25, 0.75),
        ("device", 7.25, 8.5, 1.25),
    ]
    assert found.seconds == 8.5
    assert found.stall_seconds == 5.5
    assert found.computing_seconds == 3.0
    assert (found.out_bytes, found.in_bytes) == (2 * SIZE, 2 * SIZE)
    assert found.host_bytes == plan.host_bytes == 2 * 4096
    assert [plan.graph.nodes[c.node].op.copies_to for c in found.copies] == [
        c.to for c in found.copies
    ]


def simulated(plan, costs, link):
    """The end of a step, by the earliest time at which each node may begin."""
    ends, last_of = {}, {"out": None, "in": None}
    previous = 0.0
    for node in plan.graph.nodes:
        if node.op.copies_to:
            way = "out" if node.op.copies_to == "host" else "in"
            size = node.output.type.bytes
            took = link.out_seconds(size) if way == "out" else link.in_seconds(size)
            queue = [last_of[way]] if link.both_ways else list(last_of.values())
            ends[node] = took + max([previous, *(ends[n] for n in queue if n is not None)])
            last_of[way] = node
        elif node.awaited is not None:
            previous = max(previous, ends[node.awaited])
        else:
            previous += costs.seconds(node)
    return previous


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_steps_end_when_another_simulation_says(seed, both_ways):
    rng = random.Random(seed)
    loss = mlp(layers=4, hidden=64, inputs=16, batch=32)
    plain = g.plan(loss, optimizer=g.optim.SGD(), device="h200")
    plan = copied(plain, random_trips(plain, rng, 12))
    costs = CostModel.of(plan)
    link = HostLink(rng.uniform(1e9, 1e11), rng.uniform(1e9, 1e11), 1e-7, both_ways=both_ways)
    found = model_copies(plan, costs, link)
    assert math.isclose(found.seconds, simulated(plan, costs, link), rel_tol=1e-12)
    assert math.isclose(found.computing_seconds, model_copies(plain, costs).seconds, rel_tol=1e-9)
    assert found.stall_seconds >= 0
    for way in ("host", "device"):
        spans = [(c.start, c.end) for c in found.copies if c.to == way]
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    ends = [copy.end for copy in found.copies]
    assert max(ends) <= found.seconds * (1 + 1e-12)


def test_plans_without_copies_and_collectives():
    plan = g.plan(mlp(layers=2, hidden=16, inputs=8, batch=4), optimizer=g.optim.SGD())
    found = model_copies(plan)
    assert (found.copies, found.stall_seconds, found.host_bytes) == ((), 0.0, 0)
    assert found.seconds == model_rank(plan).seconds
    assert all(
        CostModel().seconds(node) == 0 for node in two_values().graph.nodes if node.host_copy
    )
