"""The lower bound: never above the optimum, and near what is found where forward meets backward."""

import heapq
import itertools

import numpy as np
import pytest
from planner.problems import random_problem, training_chain

from graphc.planner.given import solve
from graphc.planner.given.exact import cheapest
from graphc.planner.given.replay import replay_steps
from graphc.planner.problem import Problem, Run
from graphc.planner.recompute.lower_bound import least_bytes, least_extra_cost


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_is_never_above_the_optimum(seed):
    """On chains there is something to prove at every budget but the largest."""
    is_chain = seed % 5 == 0
    problem = training_chain(6, cost=1 + seed) if is_chain else random_problem(10, seed)
    base = replay_steps(problem, problem.order)
    compared = proven = 0
    for budget in np.linspace(problem.bound_bytes, base.peak_bytes - 1, 4).astype(int):
        found = cheapest(problem, int(budget))
        if found is not None:
            best = replay_steps(problem, found).cost - base.cost
            bound = least_extra_cost(problem, int(budget))
            assert bound <= best * (1 + 1e-6)
            compared += 1
            proven += bound > 0.1 * best > 0
    if is_chain:
        assert compared == 4
        assert proven >= 3


@pytest.mark.parametrize("part", [0.7, 0.5, 0.3])
def test_chains_are_planned_near_the_bound(part):
    problem = training_chain(100)
    base = replay_steps(problem, problem.order)
    found = solve(problem, int(part * base.peak_bytes), seconds=0)
    assert base.cost < found.bound_cost <= found.cost
    assert found.cost / found.bound_cost - 1 < 0.05


def test_nothing_is_proven_where_everything_fits():
    problem = training_chain(40)
    base = replay_steps(problem, problem.order)
    assert least_extra_cost(problem, base.peak_bytes) == pytest.approx(0, abs=1e-6)
    assert solve(problem, base.peak_bytes).cost == base.cost


def small_steps(seed):
    """A few steps with several outputs, overwriting, workspaces, and values from outside."""
    rng = np.random.default_rng(seed)
    size = lambda: int(rng.choice([1, 5, 8, 8, 8]))  # noqa: E731
    count = int(rng.integers(4, 8))
    sizes = [size() for _ in range(rng.integers(0, 3))]
    outside = len(sizes)
    inputs, outputs, pairs = [], [], []
    for _ in range(count):
        near = np.arange(max(0, len(sizes) - 5), len(sizes))
        read = rng.choice(near, min(len(near), int(rng.integers(1, 3))), replace=False).tolist()
        made = list(range(len(sizes), len(sizes) + int(rng.choice([1, 1, 2]))))
        sizes += [size() for _ in made]
        inputs.append(tuple(read))
        outputs.append(tuple(made))
        pairs.append(
            tuple((m, r) for m in made for r in read if r >= outside and sizes[m] == sizes[r])
        )
    return Problem(
        cost=tuple(int(c) for c in rng.integers(1, 6, count)),
        workspace=tuple(int(w) for w in rng.choice([0, 0, 3], count)),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        overwrites=tuple(pairs),
        bytes=tuple(sizes),
        once=frozenset(np.flatnonzero(rng.random(count) < 0.1).tolist()),
        live_out=frozenset([len(sizes) - 1]),
        runs=(Run(0, count // 2, count),),
        fixed_bytes=4,
    )


def brute_force(steps, budget):
    """Least extra cost over all sequences: a shortest path over (live values, steps done)."""
    start = frozenset(v for v in range(len(steps.bytes)) if steps.producer[v] < 0)
    queue, seen, ticket = [(0, 0, start, frozenset())], {}, itertools.count(1)
    while queue:
        cost, _, live, done = heapq.heappop(queue)
        if seen.setdefault((live, done), cost) < cost:
            continue
        if len(done) == len(steps) and steps.live_out <= live:
            return cost - sum(steps.cost)
        following = [(0, live - {value}, done) for value in live]
        for step in range(len(steps)):
            if (step in done and step in steps.once) or not live.issuperset(steps.inputs[step]):
                continue
            beside = steps.fixed_bytes + steps.workspace[step]
            for taken in subsets(steps.overwrites[step]):
                after = (live - {operand for _, operand in taken}) | set(steps.outputs[step])
                if beside + steps.total(after) <= budget:
                    following.append((steps.cost[step], after, done | {step}))
        for price, values, ran in following:
            if seen.get((values, ran), np.inf) > cost + price:
                seen[values, ran] = cost + price
                heapq.heappush(queue, (cost + price, next(ticket), values, ran))
    return None


def subsets(pairs):
    """Choices of pairs in which no value stands twice."""
    for count in range(len(pairs) + 1):
        for chosen in itertools.combinations(pairs, count):
            if len({o for o, _ in chosen}) == len({i for _, i in chosen}) == count:
                yield chosen


@pytest.mark.parametrize("seed", range(60))
def test_bounds_of_steps_hold_for_every_sequence(seed):
    steps = small_steps(seed)
    plain = steps.peak(range(len(steps)))
    least = least_bytes(steps)
    assert least <= plain
    assert brute_force(steps, least - 1) is None
    for budget in {least, (least + plain) // 2, plain - 1}:
        found = brute_force(steps, budget)
        if found is not None:
            assert least_extra_cost(steps, budget) <= found * (1 + 1e-6) + 1e-9


def test_what_may_run_before_or_behind_a_wide_step_takes_its_bytes_either_way():
    """The step in the middle reads of the first one only a little. Another one may run in front of
    it, or behind; then its result, or what that is made of, comes on top, or is made again."""
    steps = Problem(
        cost=(5, 1, 3, 2),
        workspace=(0, 8, 0, 0),
        inputs=((), (1,), (0,), (2, 3)),
        outputs=((0, 1), (2,), (3,), (4,)),
        overwrites=((),) * 4,
        bytes=(8, 1, 10, 8, 1),
        once=frozenset(),
        live_out=frozenset([4]),
        runs=(Run(0, 2, 4),),
    )
    assert brute_force(steps, 27) == 0
    assert brute_force(steps, 26) == 5
    assert least_extra_cost(steps, 27) == 0
    # Of the 8 bytes of either 7 fit, and prices see the eighth part that is missing.
    assert least_extra_cost(steps, 26) == pytest.approx(5 / 8, rel=1e-6)
