"""The chain program with copies: against exhaustive search, the bound and the checker."""

import math
from dataclasses import replace

import numpy as np
import pytest
from planner.given.offload_optimum import fastest

from graphc.planner.copies.chain_copies import joint_schedules
from graphc.planner.copies.plans import Copying
from graphc.planner.given import HostLink, measure, replay
from graphc.planner.given.problem import parse_problem
from graphc.planner.recompute.lower_bound import extra_cost
from graphc.planner.recompute.solver import Solver


def chain(stages, seed, saves=True):
    """Stages whose backward reads the activations on both sides and what the stage saved."""
    rng = np.random.default_rng(seed)
    nodes = []
    for stage in range(stages):
        saved = [int(rng.integers(1, 8))] if saves and rng.random() < 0.5 else []
        nodes.append(
            {
                "id": stage,
                "cost": int(rng.integers(1, 6)),
                "bytes": [int(rng.integers(1, 8)), *saved],
                "inputs": [[stage - 1, 0]] if stage else [],
            }
        )
    for stage in reversed(range(stages)):
        sources = [[stage, index] for index in range(len(nodes[stage]["bytes"]))]
        sources += [[len(nodes) - 1, 0]] if stage < stages - 1 else []
        sources += [[stage - 1, 0]] if stage else []
        nodes.append(
            {
                "id": len(nodes),
                "cost": int(rng.integers(1, 9)),
                "bytes": [int(rng.integers(1, 8))],
                "inputs": sources,
            }
        )
    return parse_problem({"nodes": nodes, "boundary": stages})


def linked(problem, rate):
    return replace(problem, link=HostLink(rate, rate))


def budget_of(problem, part):
    peak = replay(problem, problem.needed).peak_bytes
    return int(problem.bound_bytes + part * (peak - problem.bound_bytes))


def plans(problem, budget, limit=math.inf):
    """The plans of all schedules of the program, with the values that they are to copy."""
    solver = Solver(problem.steps)
    copying = Copying(problem.steps, problem.link, frozenset())
    for joint in joint_schedules(solver, problem.link, budget, frozenset()):
        for sequence, values in joint(limit):
            plan = copying.planned(copying.base_with(sequence, values), budget)
            if plan is not None:
                yield plan, values


def test_nearly_all_tiny_chains_are_optimal():
    """No plan is faster than the fastest of all schedules, and few are slower."""
    seeds, optimal = range(0, 40, 2), 0
    for seed in seeds:
        problem = linked(chain(2, seed, saves=False), (1.0, 3.0)[seed // 2 % 2])
        budget = budget_of(problem, (0.2, 0.6)[seed // 4 % 2])
        least = fastest(problem, budget)
        found = min((plan.seconds for plan, _ in plans(problem, budget)), default=math.inf)
        assert found >= (least or 0) - 1e-6
        optimal += found <= (math.inf if least is None else least) + 1e-6
    assert optimal >= 0.95 * len(seeds)


@pytest.mark.parametrize(
    ("seed", "rate"),
    [
        pytest.param(seed, rate, marks=[pytest.mark.slow] if seed % 3 != (rate > 1) else [])
        for seed in range(6)
        for rate in (1.0, 4.0)
    ],
)
def test_plans_are_legal_fit_and_keep_the_bound(seed, rate):
    problem = linked(chain(10, seed), rate)
    budget = budget_of(problem, 0.3)
    once = sum(problem.cost)
    bound = once + extra_cost(problem.steps, budget, problem.link)
    found = list(plans(problem, budget))
    assert found
    for plan, _ in found:
        measured = measure(problem, plan.events, budget)
        assert measured.seconds == pytest.approx(plan.seconds)
        assert measured.seconds >= bound * (1 - 1e-9)
    assert found == list(plans(problem, budget))


def test_a_fast_link_copies_instead_of_recomputing():
    problem = linked(chain(12, 1), 1e3)
    plan, values = next(plans(problem, budget_of(problem, 0.3)))
    assert values
    assert plan.run_seconds == sum(problem.cost)
    slow = linked(problem, 1e-3)
    best, _ = min(plans(slow, budget_of(slow, 0.3)), key=lambda found: found[0].seconds)
    assert not best.copies


def test_resident_values_and_schedules_above_the_limit_are_left_out():
    problem = linked(chain(12, 2), 4.0)
    budget = budget_of(problem, 0.3)
    solver = Solver(problem.steps)
    resident = frozenset(range(6))
    for joint in joint_schedules(solver, problem.link, budget, resident):
        for _, values in joint(math.inf):
            assert not values & resident
        assert not list(joint(-1.0))


def test_problems_without_a_chain_have_no_schedules():
    steps = replace(chain(4, 3).steps, runs=())
    assert joint_schedules(Solver(steps), HostLink(1.0, 1.0), 100, frozenset()) == []
