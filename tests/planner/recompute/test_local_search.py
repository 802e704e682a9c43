"""Sequences that are given room and shrunk again: legal, no dearer, nearer to closed forms."""

import random

import numpy as np
import pytest
from planner.chains import reversal_chain, revolve
from planner.problems import random_problem

from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps
from graphc.planner.recompute.evict import evict
from graphc.planner.recompute.local_search import iterate, perturbed
from graphc.planner.recompute.solver import Solver

pytestmark = pytest.mark.usefixtures("little")


@pytest.mark.parametrize("length", [14, 30])
def test_chains_come_nearer_to_revolve(length):
    """What shrinking alone loses to the optimum of Griewank and Walther, and what is left of it."""
    steps = reversal_chain(length)
    lost, left = [], []
    for limit in range(length - 1, 2, -1):
        given = evict(steps, range(len(steps)), limit)
        if given is not None:
            least = revolve(length, limit - 1) - (length - 1)
            found = iterate(steps, given, limit, effort=20 * len(steps))
            assert steps.peak(found) <= limit
            lost.append(steps.extra_cost(given) - least)
            left.append(steps.extra_cost(found) - least)
    assert all(0 <= after <= before for before, after in zip(lost, left, strict=True))
    assert sum(left) < 0.9 * sum(lost)


def test_what_is_found_is_legal_and_no_dearer():
    cheaper = 0
    for seed in range(12):
        problem = random_problem(40, seed)
        steps = problem
        once = list(range(len(steps)))
        for limit in np.linspace(problem.bound_bytes, steps.peak(once), 6).astype(int):
            given = evict(steps, once, int(limit))
            if given is None:
                continue
            found = iterate(steps, given, int(limit), effort=20 * len(steps))
            measured = replay_steps(problem, found)
            assert measured.peak_bytes == steps.peak(found) <= limit
            assert steps.extra_cost(found) <= steps.extra_cost(given)
            cheaper += steps.extra_cost(found) < steps.extra_cost(given)
    assert cheaper >= 10


def chain_with_skips(length, seed):
    """A chain with random costs and bytes, some skip connections, and its gradients."""
    draw = random.Random(seed)
    nodes, readers = [], {node: [] for node in range(length)}
    for node in range(length):
        inputs = {node - 1} if node else set()
        if node and draw.random() < 0.3:
            inputs.add(draw.randint(max(0, node - 6), node - 1))
        for read in inputs:
            readers[read].append(node)
        size, cost = draw.choice([1, 1, 2, 4]), draw.randint(50, 900)
        nodes.append({"id": node, "cost": cost, "bytes": size, "inputs": sorted(inputs)})
    for node in reversed(nodes[:length]):
        read = {*node["inputs"], node["id"]}
        nodes.append({
            "id": 2 * length - 1 - node["id"],
            "cost": 1.6 * node["cost"],
            "bytes": sum(nodes[each]["bytes"] for each in node["inputs"]) or 1,
            "inputs": sorted(read | {2 * length - 1 - each for each in readers[node["id"]]}),
        })  # fmt: skip
    return parse_problem({"nodes": nodes, "outputs": [2 * length - 1], "budget": 2**40})


def test_perturbed_costs_lead_to_cheaper_schedules():
    """The start is the result of the search that relaxes capacities."""
    cheaper = 0
    for seed in range(4):
        problem = chain_with_skips(60, seed)
        steps = problem
        limit = int(0.3 * steps.peak(range(len(steps))))
        best = Solver(steps).schedule(limit).sequence
        first = steps.extra_cost(best)
        assert perturbed(steps, best, limit, 1) == perturbed(steps, best, limit, 1)
        for number in range(60):
            other = perturbed(steps, best, limit, number)
            if other is not None:
                measured = replay_steps(problem, other)
                assert measured.peak_bytes == steps.peak(other) <= limit
                best = min(best, other, key=steps.extra_cost)
        cheaper += steps.extra_cost(best) < first
    assert cheaper >= 2


def test_without_effort_a_sequence_stays():
    steps = reversal_chain(14)
    given = evict(steps, range(len(steps)), 7)
    assert given is not None
    assert iterate(steps, given, 7, effort=len(steps) - 1) == given
