"""Plans with copies to host memory: bits, bytes and seconds of networks, and refused options."""

import functools

import numpy as np
import pytest
from memory.networks import MODELS, parameters

import graphc as g
from graphc import MeasuredCosts
from graphc.errors import BudgetError, OptionError
from graphc.planner.host_link import HostLink
from graphc.plans.check.check_plan import check_plan
from graphc.plans.copy_model import model_copies
from graphc.runtime.feeds import random_feeds

FAST = HostLink(2e11, 2e11)
"""A link that is fast enough for small networks: a copy takes about as long as a node."""

QUICK = ("gpt2",)
OTHERS = [name for name in MODELS if name not in (*QUICK, "resnet")]
"""The step of this ResNet needs hardly more than its states, so no budget is between the two."""


def over(link):
    """Costs of the CPU's roofline, with another link to the host."""
    return MeasuredCosts({"name": "cpu"}, (), link)


@functools.cache
def planned(name, part, link=FAST, **options):
    """A plan within a part of the bytes between the lower bound and a plan without budget."""
    plain = most(name)
    budget = plain.bound_bytes + int(part * (plain.arena_bytes - plain.bound_bytes))
    options |= {"optimizer": g.optim.SGD(), "budget": budget, "costs": over(link)}
    return g.plan(MODELS[name](), **options), budget


@functools.cache
def most(name):
    arena = g.plan(MODELS[name](), optimizer=g.optim.SGD()).arena_bytes
    return g.plan(MODELS[name](), optimizer=g.optim.SGD(), budget=arena)


def seconds(plan):
    return model_copies(plan, link=FAST).seconds


@pytest.mark.parametrize("name", parameters(QUICK, OTHERS))
@pytest.mark.parametrize("part", [0.5, 0.3])
def test_copies_are_within_both_budgets_and_save_time(name, part):
    try:
        alone, _ = planned(name, part)
    except BudgetError:
        alone = None
    found, budget = planned(name, part, host_budget="1GiB")
    check_plan(found)
    assert found.arena_bytes <= budget
    assert found.host_bytes <= 2**30
    once = seconds(found) - found.recomputation.extra_time_fraction * seconds(most(name))
    assert seconds(found) >= (1 + found.certificate.extra_time_bound) * once * (1 - 1e-6)
    if alone is not None:
        assert seconds(found) <= seconds(alone) * (1 + 1e-6)
        assert found.certificate.extra_time_bound <= alone.certificate.extra_time_bound + 1e-12


@pytest.mark.parametrize(
    "name", parameters(("gpt2",), ("densenet121", "unet", "lstm", "preact_resnet", "bert"))
)
def test_copies_change_no_bit(name):
    found, _ = planned(name, 0.5 if name == "gpt2" else 0.4, host_budget="1GiB")
    assert any(node.op.copies_to == "host" for node in found.graph.nodes)
    drawn = random_feeds(most(name).graph, seed=1)
    feeds = {source.name: array for source, array in drawn.items() if source.default is None}
    programs = [g.bind(most(name)), g.bind(found, poison=True)]
    outputs = [[program.step(feeds) for _ in range(2)] for program in programs]
    for plain, copied in zip(*outputs, strict=True):
        assert all(np.array_equal(plain[key], copied[key]) for key in plain)
    states = [dict(program.states) for program in programs]
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])


def test_the_host_budget_holds():
    """Less host memory leaves more to recomputation."""
    wide, _ = planned("gpt2", 0.5, host_budget="1GiB")
    limit = wide.host_bytes // 3
    narrow, budget = planned("gpt2", 0.5, host_budget=limit)
    assert 0 < narrow.host_bytes <= limit
    assert narrow.arena_bytes <= budget
    assert seconds(narrow) >= seconds(wide)
    none, _ = planned("gpt2", 0.5, host_budget=0)
    assert none.host_bytes == 0
    assert none.text() == planned("gpt2", 0.5)[0].text()


def test_a_plan_that_fits_copies_nothing():
    assert planned("gpt2", 1.0, host_budget="1GiB")[0].host_bytes == 0


def test_plans_with_copies_are_equal_each_time():
    first, _ = planned("gpt2", 0.5, host_budget="1GiB")
    again, _ = planned.__wrapped__("gpt2", 0.5, host_budget="1GiB")
    assert again.text() == first.text()


def test_a_slow_link_is_not_used():
    found, _ = planned("gpt2", 0.75, HostLink(1e3, 1e3), host_budget="1GiB")
    assert found.host_bytes == 0


@pytest.mark.slow
def test_a_frontier_with_copies_is_below_one_without():
    network = MODELS["gpt2"]()
    options = {"optimizer": g.optim.SGD(), "costs": over(FAST)}
    alone = g.frontier(network, **options)
    both = g.frontier(network, **options, host_budget="1GiB")
    assert both[0].arena_bytes == alone[0].arena_bytes
    middle = alone[len(alone) // 2]
    assert min(p.extra_time_fraction for p in both if p.arena_bytes <= middle.arena_bytes) < (
        middle.extra_time_fraction
    )
    assert all(p.extra_time_bound <= p.extra_time_fraction + 1e-9 for p in both)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_budget": "1GiB"}, "applies only with a budget"),
        ({"host_budget": "1GiB", "feature_map_budget": "1GiB"}, "applies only with a budget"),
        ({"host_budget": "1GiB", "budget": "1GiB", "streams": 2}, "do not support streams=2"),
        ({"host_budget": "1GiB", "budget": "1GiB", "ranks": 2}, "do not support ranks=2"),
        ({"host_budget": "1GiB", "budget": "1GiB", "allocate": "none"}, "do not support allocate"),
        ({"host_budget": "many", "budget": "1GiB"}, "host_budget"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(OptionError, match=message):
        g.plan(MODELS["gpt2"](), optimizer=g.optim.SGD(), **options)
