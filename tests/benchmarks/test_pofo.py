"""POFO, a baseline: its schedules are legal, fit, and are not faster than the optimum."""

import numpy as np
import pofo
import pytest
from chains import Chain, random_chain
from planner.given import offload_optimum
from rotor import Rotor

from graphc.planner.given import HostLink, exact, measure
from graphc.planner.given.replay import replay_steps


def tiny(seed):
    """A chain of three stages and a link that copies an activation in about the time of a
    stage."""
    rng = np.random.default_rng(seed)
    sizes = [tuple(rng.integers(1, 10, 3).tolist()) for _ in range(3)]
    forward, backward, activation = sizes
    nothing = (0, 0, 0)
    gradient = (*activation[:-1], 0)
    rate = float(rng.uniform(0.3, 3))
    chain = Chain(forward, backward, activation, nothing, gradient, nothing, nothing)
    return chain, HostLink(rate, rate)


def budgets(chain, parts):
    problem = chain.problem()
    peak = replay_steps(problem, problem.order).peak_bytes
    return [int(problem.bound_bytes + part * (peak - problem.bound_bytes)) for part in parts]


def test_schedules_of_tiny_chains_are_not_faster_than_the_optimum(monkeypatch):
    monkeypatch.setattr(offload_optimum, "MOST", 60_000)
    optimal = copied = 0
    for seed in range(4):
        chain, link = tiny(seed)
        (budget,) = budgets(chain, (0.3,))
        least = offload_optimum.fastest(chain.problem(link), budget)
        found = pofo.plan(chain, link, budget)
        assert found.timing.seconds >= least - 1e-9
        optimal += found.timing.seconds <= least + 1e-9
        copied += found.timing.bytes_to_host > 0
    assert optimal >= 2
    assert copied >= 1


RATIOS = (0.05, 0.3, 2.0)


@pytest.mark.parametrize(
    ("seed", "ratio"),
    [
        pytest.param(seed, ratio, marks=[] if RATIOS[seed] == ratio else pytest.mark.slow)
        for seed in range(3)
        for ratio in RATIOS
    ],
)
def test_schedules_are_legal_and_fit(seed, ratio):
    chain = random_chain(np.random.default_rng(seed), 4 + 4 * seed)
    rate = ratio * sum(chain.whole) / sum(chain.forward)
    link = HostLink(rate, 2 * rate)
    once = sum(chain.forward) + sum(chain.backward)
    for budget in budgets(chain, (0.02, 0.3, 0.7)):
        found = pofo.plan(chain, link, budget)
        # Grids of bytes may rule out what barely fits.
        if found is None:
            continue
        measured = measure(chain.problem(link), found.events, budget)
        assert measured == found.timing
        assert measured.seconds >= once * (1 - 1e-9)


def test_everything_stays_if_it_fits():
    chain = random_chain(np.random.default_rng(0), 10)
    problem = chain.problem()
    base = replay_steps(problem, problem.order)
    found = pofo.plan(chain, HostLink(1.0, 1.0), base.peak_bytes + 10**6)
    assert found.timing.seconds == pytest.approx(base.cost)
    assert found.timing.bytes_to_host == 0


def test_a_fast_link_replaces_recomputation():
    chain = random_chain(np.random.default_rng(1), 20)
    link = HostLink(1e15, 1e15)
    (budget,) = budgets(chain, (0.2,))
    once = sum(chain.forward) + sum(chain.backward)
    found = pofo.plan(chain, link, budget)
    assert found.timing.seconds == pytest.approx(once, rel=1e-4)
    assert found.timing.bytes_to_host > 0


def test_rotor_is_not_cheaper_than_the_optimum_and_mostly_as_cheap():
    """Exhaustive search over recomputation decides."""
    compared = optimal = 0
    for seed in range(12):
        chain, _ = tiny(seed)
        problem = chain.problem()
        for budget in budgets(chain, (0.0, 0.3, 0.6, 1.0)):
            least = replay_steps(problem, exact.cheapest(problem, budget)).cost
            rotor = Rotor(chain, budget, slots=budget)
            sequence = rotor.sequence(0, len(chain) - 1, budget)
            measured = replay_steps(problem, sequence)
            assert measured.peak_bytes <= budget
            assert measured.cost == rotor.seconds[0, -1, budget] >= least
            compared += 1
            optimal += measured.cost == least
    assert optimal >= 0.7 * compared
