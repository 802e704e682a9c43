"""The planner of sequences: closed forms, brute force, and its own promises."""

import itertools

import numpy as np
import pytest
from planner.chains import reversal_chain, revolve
from planner.problems import random_problem, training_chain

import graphc as g
from graphc.memory import inplace
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import densenet121, gpt2, resnet, unet
from graphc.planner.given.exact import cheapest
from graphc.planner.given.replay import replay_steps
from graphc.planner.recompute.lower_bound import least_bytes
from graphc.planner.recompute.min_cut import Choice
from graphc.planner.recompute.solver import Solver


@pytest.mark.parametrize(
    "length",
    [1, 2, 3, 5, 9, 14, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 65))],
)
def test_equal_chains_take_what_revolve_takes(length):
    planner = Solver(reversal_chain(length))
    for checkpoints in range(1, length + 1):
        # one more byte for the state that is being advanced
        found = planner.schedule(checkpoints + 1)
        assert found.extra_cost == revolve(length, checkpoints) - (length - 1)
        assert found.peak_bytes <= checkpoints + 1


def test_the_closed_form_at_its_ends():
    """One checkpoint: every state from the first again. As many as states: nothing again."""
    assert [revolve(n, 1) for n in range(1, 6)] == [0, 1, 3, 6, 10]
    assert [revolve(n, n) for n in range(1, 6)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("layers", [4, 5, 6])
def test_small_training_chains_are_planned_exactly(layers):
    problem = training_chain(layers)
    planner = Solver(problem)
    base = replay_steps(problem, problem.order)
    for budget in range(problem.bound_bytes, base.peak_bytes + 1, 100):
        required, found = cheapest(problem, budget), planner.schedule(budget)
        assert (required is None) == (found is None)
        if found is not None:
            assert found.extra_cost == replay_steps(problem, required).cost - base.cost


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 20))]
)
def test_what_is_planned_is_legal_and_fits(seed):
    problem = random_problem(40, seed)
    planner = Solver(problem)
    least, most = planner.least.peak_bytes, planner.no_recompute.peak_bytes
    costs = []
    for budget in np.linspace(least, most, 5).astype(int):
        found = planner.schedule(int(budget))
        measured = replay_steps(problem, found.sequence)
        assert measured.peak_bytes == found.peak_bytes <= budget
        assert measured.cost - replay_steps(problem, problem.order).cost == pytest.approx(
            found.extra_cost
        )
        costs.append(found.extra_cost)
    assert costs[-1] == 0


def brute_choice(steps, chosen, required, price):
    """Least cost plus price times bytes over all sets of kept values."""
    made = [value for step in chosen for value in steps.outputs[step]]
    best = np.inf
    for size in range(len(made) + 1):
        for kept in itertools.combinations(made, size):
            again = steps.missing(required, set(kept))
            best = min(best, steps.cost_of(again) + price * steps.total(kept))
    return best


@pytest.mark.parametrize("seed", range(15))
def test_keep_sets_are_the_cheapest_at_their_price(seed):
    steps = random_problem(9, seed)
    chosen, rng = range(len(steps)), np.random.default_rng(seed)
    required = sorted(set(rng.integers(0, len(steps), 3).tolist()))
    choice = Choice(steps, chosen, required, ())
    for price in (0.01, 0.1, 0.3, 1.0):
        found = choice.cheapest(price)
        assert found.cost == steps.cost_of(steps.missing(required, found.values))
        assert found.cost + price * found.bytes == pytest.approx(
            brute_choice(steps, chosen, required, price)
        )
    hull = choice.hull(8)
    assert [s.bytes for s in hull] == sorted({s.bytes for s in hull}, reverse=True)
    assert hull[-1].bytes == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: resnet(batch=2, image=64, units=(1, 2, 1, 1)),
        lambda: densenet121(batch=2, image=64, blocks=(3, 4, 3)),
        lambda: unet(batch=1, image=64),
        lambda: gpt2(layers=3, batch=2, seq_len=32),
    ],
)
def test_steps_have_the_bytes_of_the_plan(build, monkeypatch):
    """Lifetimes, views and overwriting found by other code than the allocator's, which here copies
    what it concatenates."""
    monkeypatch.setattr("graphc.memory.allocate.choose_parts", lambda *_: inplace.NO_PARTS)
    plan = g.plan(build(), optimizer=g.optim.SGD())
    graph_steps = TrainingGraph(
        Allocation(plan.graph, plan.target, plan.alignment),
        lambda node: 0.0,
        feature_maps_only=False,
    )
    once = range(len(graph_steps.steps))
    assert graph_steps.steps.peak(once) == plan.live_bytes
    assert sorted(graph_steps.with_views(once)) == list(range(len(plan.graph.nodes)))


@pytest.mark.parametrize("size", [1, 4, 37, 64])
@pytest.mark.parametrize("is_nested", [False, True])
def test_parts_of_a_concatenation_bound_no_plan_by_their_padding(size, is_nested):
    """Inside they lie side by side, so no order of this has more bytes than the whole."""
    parts = [g.tanh(g.parameter(f"x{n}", (1, size))) for n in range(64)]
    if is_nested:
        parts = [g.concat(parts[n : n + 8], axis=0) for n in range(0, 64, 8)]
    plan = g.plan(outputs={"sum": g.sum(g.concat(parts, axis=0))})
    allocation = Allocation(plan.graph, plan.target, plan.alignment)
    graph_steps = TrainingGraph(allocation, lambda node: 0.0, feature_maps_only=False)
    whole = 64 * size * 4 // 256 * 256
    found = least_bytes(graph_steps.bounding_steps)
    assert plan.state_bytes + whole <= found <= plan.arena_bytes
