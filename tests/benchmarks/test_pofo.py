"""POFO, a baseline: its schedules are legal, fit, and are not faster than the optimum."""

import numpy as np
import pofo
import pytest
from chains import Chain, random_chain
from remat.given.offload_optimum import TooManyStatesError, fastest
from rotor import Rotor

from graphc.remat.given import HostLink, exact, measure, replay


def tiny(seed):
    """A chain of 2 or 3 stages and a link that copies an activation in about the time of a
    stage."""
    rng = np.random.default_rng(seed)
    stages = 2 + seed % 2
    sizes = lambda: tuple(rng.integers(1, 10, stages).tolist())  # noqa: E731
    activation, nothing = sizes(), (0,) * stages
    seconds = [tuple(map(float, sizes())) for _ in range(2)]
    rate = float(rng.uniform(0.3, 3))
    chain = Chain(*seconds, activation, nothing, (*activation[:-1], 0), nothing, nothing)
    return chain, HostLink(rate, rate)


def budgets(chain, parts):
    problem = chain.problem()
    peak = replay(problem, problem.needed).peak_bytes
    return [int(problem.bound_bytes + part * (peak - problem.bound_bytes)) for part in parts]


def test_schedules_of_tiny_chains_are_not_faster_than_the_optimum():
    compared = optimal = 0
    for seed in range(60):
        chain, link = tiny(seed)
        for budget in budgets(chain, (0.0, 0.5)):
            problem = chain.problem(link)
            try:
                least = fastest(problem, budget)
            except TooManyStatesError:
                continue
            found = pofo.plan(chain, link, budget)
            assert found is not None
            assert found.timing.seconds >= least - 1e-9
            compared += 1
            optimal += found.timing.seconds <= least + 1e-9
    assert compared >= 50
    assert optimal >= 0.8 * compared


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ratio", [0.05, 0.3, 2.0])
def test_schedules_are_legal_and_fit(seed, ratio):
    chain = random_chain(np.random.default_rng(seed), 5 + seed)
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
        # The link frees bytes earlier in the model of the paper.
        assert found.timing.seconds >= found.expected_seconds * (1 - 1e-9) or ratio


def test_everything_stays_if_it_fits():
    chain = random_chain(np.random.default_rng(0), 10)
    problem = chain.problem()
    base = replay(problem, problem.needed)
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


@pytest.mark.parametrize("seed", range(8))
def test_without_copies_rotor_is_optimal(seed):
    """With three stages, exhaustive search over recomputation decides."""
    chain, _ = tiny(2 * seed + 1)
    problem = chain.problem()
    for budget in budgets(chain, (0.0, 0.3, 0.6, 1.0)):
        least = replay(problem, exact.cheapest(problem, budget)).cost
        rotor = Rotor(chain, budget, slots=budget)
        sequence = rotor.sequence(0, len(chain) - 1, budget)
        measured = replay(problem, sequence)
        assert measured.peak_bytes <= budget
        assert measured.cost == rotor.seconds[0, -1, budget] == least
