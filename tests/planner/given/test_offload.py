"""Plans with copies to the host: against exhaustive search, by hand, and without copies."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from cli.running import run
from loops import case
from planner.given.offload_optimum import TooManyStatesError, fastest
from planner.problems import random_problem, random_training, training_chain

from graphc.errors import BudgetError
from graphc.planner.given import HostLink, exact, measure, solve
from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps
from graphc.planner.recompute.lower_bound import least_extra_cost


def tiny(seed):
    """A problem of 5 or 6 nodes with a link that copies a value in about the time of a node."""
    is_chain = seed % 2
    problem = random_training(3, seed) if is_chain else random_problem(6, seed, pinned=0.1)
    rate = 4.0 if is_chain else 20.0
    links = (
        HostLink(rate, rate),
        HostLink(rate / 2, rate, 1.0),
        HostLink(2 * rate, rate, 0.5, None, False),
    )
    return replace(problem, link=links[seed // 2 % 3])


def cases(seeds):
    for seed in seeds:
        problem = tiny(seed)
        peak = replay_steps(problem, problem.order).peak_bytes
        for part in (0.0, 0.5):
            budget = int(problem.bound_bytes + part * (peak - problem.bound_bytes))
            if budget < peak:
                yield problem, budget


def test_plans_and_bounds_against_exhaustive_search():
    """Nearly all plans are optimal, and no bound is above the optimum."""
    compared = optimal = 0
    for problem, budget in cases(range(70)):
        try:
            least = fastest(problem, budget)
        except TooManyStatesError:
            continue
        once = sum(problem.cost[node] for node in problem.order)
        compared += 1
        if least is None:
            with pytest.raises(BudgetError):
                solve(problem, budget, seconds=1)
            optimal += 1
            continue
        assert once + least_extra_cost(problem, budget, problem.link) <= least + 1e-6
        found = solve(problem, budget, seconds=1)
        assert found.peak_bytes <= budget
        assert found.cost >= least - 1e-6
        assert found.bound_cost <= least + 1e-6
        optimal += found.cost <= least + 1e-6
    assert compared >= 25
    assert optimal >= 0.95 * compared


def one_copy():
    """A problem of 8 nodes, five of which run once."""
    nodes = [
        (1, 64, []), (2, 64, [[1, 0]]), (3, 1, [[2, 0]]), (4, 64, [[3, 0]]),
        (5, 64, [[2, 0]]), (7, [8, 1], []), (8, 1, []), (9, 0, [[4, 0], [5, 0], [7, 1]]),
    ]  # fmt: skip
    return parse_problem(
        {
            "nodes": [{"id": i, "cost": 1, "bytes": b, "inputs": each} for i, b, each in nodes],
            "fixed_bytes": 50,
            "outputs": [8, 9],
            "boundary": 4,
            "link": {"to_host": 1e6, "to_device": 5e5, "latency": 0.01},
        }
    )


def test_a_copy_that_computation_waits_for(monkeypatch):
    """In the order of the file, a plan recomputes nothing and waits for one copy to the host."""
    monkeypatch.setattr(exact, "is_small", lambda _: False)
    found = solve(one_copy(), 200, seconds=1)
    assert found.peak_bytes <= 200
    assert found.cost == pytest.approx(8 + 0.01 + 64 / 1e6)


def test_nodes_that_run_once_may_be_few_enough_for_the_exact_search():
    """Another order needs no copy within 180 bytes, and no order less without one."""
    assert solve(one_copy(), 200).cost == 8
    alone = replace(one_copy(), link=None)
    with pytest.raises(BudgetError) as caught:
        solve(alone, 179)
    assert caught.value.least_bytes == solve(alone, 180).peak_bytes == 180


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("budget", [0, 178])
def test_the_least_bytes_are_those_with_copies(monkeypatch, is_small, budget):
    monkeypatch.setattr(exact, "is_small", lambda _: is_small)
    problem = one_copy()
    with pytest.raises(BudgetError) as caught:
        solve(problem, budget, seconds=0)
    error = caught.value
    assert error.least_bytes == error.bound_bytes == 179
    assert sum(size for _, size in error.values) == 179
    found = solve(problem, 179, seconds=0)
    assert found.peak_bytes == 179
    assert found.bytes_to_host > 0


def test_copies_may_reach_the_bound_although_budgets_between_fail():
    """A plan within 185 bytes is not found, but one within the lower bound is."""
    rows = [
        (3, 1, 4, [], 0), (12, 2.5, [64, 64, 4], [3], 0), (15, 2.5, 16, [[12, 2]], 0),
        (24, 0, [1, 16, 1], [[12, 1], [12, 0], [12, 2]], 0), (0, 7, [0, 64, 64], [[12, 1]], 0),
        (21, 1, 16, [[0, 0]], 1), (9, 2.5, 4, [[12, 0], [12, 1], 21], 8),
        (6, 7, [1, 0, 1], [[24, 1], [0, 1]], 0), (18, 1, [0, 4, 0], [[0, 0], [6, 2]], 1),
    ]  # fmt: skip
    names = ("id", "cost", "bytes", "inputs", "workspace")
    nodes = [dict(zip(names, row, strict=True)) for row in rows]
    nodes[1]["overwrites"], nodes[4]["overwrites"] = [[2, 0]], [[1, 0], [2, 0]]
    given = {"nodes": nodes, "boundary": 21, "link": {"to_host": 500, "to_device": 500}}
    problem = parse_problem({**given, "fixed_bytes": 10})
    with pytest.raises(BudgetError) as caught:
        solve(problem, 0, seconds=0)
    assert caught.value.least_bytes == problem.bound_bytes == 166
    assert solve(problem, 166, seconds=0).peak_bytes == 166


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_plans_meet_the_least_bytes_named_with_a_link(seed):
    problem = with_link(random_training(18, seed), host_bytes=40)
    with pytest.raises(BudgetError) as caught:
        solve(problem, 0, seconds=0)
    least = caught.value.least_bytes
    with pytest.raises(BudgetError) as alone:
        solve(replace(problem, link=None), 0, seconds=0)
    assert least <= alone.value.least_bytes
    assert solve(problem, least, seconds=0).peak_bytes <= least


def with_link(problem, **fields):
    return replace(problem, link=HostLink(**{"to_host": 40.0, "to_device": 40.0} | fields))


@pytest.mark.parametrize("layers", [20, 60])
def test_a_fast_link_replaces_recomputation(layers):
    """A layer takes a second forward and two backward, and a copy takes a second."""
    problem = training_chain(layers)
    base = replay_steps(problem, problem.order)
    budget = base.peak_bytes // 2
    alone = solve(problem, budget, seconds=0)
    linked = solve(with_link(problem, to_host=100.0, to_device=100.0), budget, seconds=1)
    assert alone.cost > base.cost
    assert linked.cost == base.cost
    assert linked.stalls == 0
    assert linked.bytes_to_host == linked.bytes_to_device > 0


@pytest.mark.parametrize(
    ("seed", "rate"),
    [
        pytest.param(seed, rate, marks=[pytest.mark.slow] if seed % 3 != number else [])
        for number, rate in enumerate((0.5, 2.0, 20.0))
        for seed in range(6)
    ],
)
def test_plans_are_checked_and_never_slower_than_recomputation(seed, rate):
    problem = with_link(random_training(18, seed), to_host=rate, to_device=2 * rate)
    base = replay_steps(problem, problem.order)
    budget = int(problem.bound_bytes + 0.3 * (base.peak_bytes - problem.bound_bytes))
    found = solve(problem, budget, seconds=0)
    measured = measure(problem, found.events, budget)
    assert measured.seconds == found.cost >= found.bound_cost * (1 - 1e-9)
    assert measured.peak_bytes == found.peak_bytes <= budget
    assert found.recompute_alone is None or found.cost <= found.recompute_alone
    assert found.stalls == pytest.approx(found.cost - measured.run_seconds)
    assert seed > 2 or solve(problem, budget, seconds=0).events == found.events


def test_no_plan_has_changed(golden):
    """Copies and recomputed nodes change only on purpose, also where another plan is as good."""
    lines = []
    for seed in range(10):
        rate, host_bytes = (0.5, 2.0, 20.0)[seed % 3], (None, 40)[seed % 2]
        fields = {"to_host": rate, "to_device": 2 * rate, "host_bytes": host_bytes}
        problem = with_link(random_training(18, seed), **fields)
        peak = replay_steps(problem, problem.order).peak_bytes
        for part in (0.1, 0.5):
            budget = int(problem.bound_bytes + part * (peak - problem.bound_bytes))
            found = solve(problem, budget, seconds=0)
            digest = hashlib.sha256(repr(found.events).encode()).hexdigest()[:16]
            copied = f"{found.bytes_to_host} copied of {found.peak_bytes} bytes"
            lines.append(f"{seed} within {budget}: {copied}, {digest}\n")
    golden("offload.txt", "".join(lines))


def test_host_bytes_are_limited():
    budget = replay_steps(problem := training_chain(16), problem.order).peak_bytes // 2
    most = solve(with_link(problem), budget, seconds=0)
    for host_bytes in (0, 200, 400):
        with case(host_bytes):
            found = solve(with_link(problem, host_bytes=host_bytes), budget, seconds=0)
            assert found.host_peak_bytes <= host_bytes
            assert (found.bytes_to_host > 0) == (host_bytes > 0)
            assert most.cost <= found.cost
    assert most.host_peak_bytes > 400


def test_copies_make_plans_possible_that_recomputation_does_not():
    """Backward nodes run once, so only a copy can free a value of theirs."""
    nodes = [
        {"id": 0, "cost": 1, "bytes": 4},
        {"id": 1, "cost": 1, "bytes": 8, "inputs": [0]},
        {"id": 2, "cost": 9, "bytes": 8, "inputs": []},
        {"id": 3, "cost": 1, "bytes": 8, "inputs": [2]},
        {"id": 4, "cost": 1, "bytes": 1, "inputs": [3, 1]},
    ]
    given = {"nodes": nodes, "boundary": 0, "budget": 17}
    with pytest.raises(BudgetError):
        solve(parse_problem(given))
    found = solve(parse_problem({**given, "link": {"to_host": 8, "to_device": 8}}))
    assert found.cost == 14
    assert found.recompute_alone is None
    assert found.bytes_to_host == 8


def test_everything_that_fits_stays():
    problem = with_link(training_chain(5))
    for budget in (None, 10**6):
        found = solve(problem, budget)
        assert found.bytes_to_host == 0
        assert found.cost == found.bound_cost == found.recompute_alone
        assert found.events == tuple(f"run {node}" for node in found.sequence)


def test_bounds_fall_with_the_rate_of_the_link():
    problem = training_chain(60)
    budget = replay_steps(problem, problem.order).peak_bytes // 3
    bounds = [
        least_extra_cost(problem, budget, HostLink(rate, rate)) for rate in np.geomspace(1, 1000, 8)
    ]
    alone = least_extra_cost(problem, budget)
    assert bounds == sorted(bounds, reverse=True)
    assert alone >= bounds[0] > bounds[-1] == 0
    assert least_extra_cost(problem, budget, HostLink(9.0, 9.0, host_bytes=0)) == pytest.approx(
        alone
    )


def test_bounds_by_hand():
    """At node 2, 10 bytes of node 0 must be recomputed in 9 s, or copied in the 10 s until then.

    One byte is spare, and the link copies 5 in that time at half a byte per second. So 4 tenths of
    node 0 remain. What the link copies is rounded up to a byte.
    """
    nodes = [
        {"id": 0, "cost": 9, "bytes": 10},
        {"id": 1, "cost": 1, "bytes": 10, "inputs": [0]},
        {"id": 2, "cost": 1, "bytes": 10, "inputs": [1]},
        {"id": 3, "cost": 1, "bytes": 1, "inputs": [2, 0]},
    ]
    problem = parse_problem({"nodes": nodes})
    bounds = [least_extra_cost(problem, 21, HostLink(rate, rate)) for rate in (0.001, 0.5, 1, 8)]
    assert bounds == pytest.approx([7.2, 3.6, 0, 0], abs=1e-5)
    slow = with_link(problem, to_host=0.5, to_device=0.5)
    assert fastest(slow, 21) == solve(slow, 21).cost == 12 + 9
    fast = with_link(problem, to_host=8.0, to_device=80.0)
    # The copy out takes 1.25 s, 0.25 of them beside nothing, and the copy back 0.125.
    assert fastest(fast, 21) == solve(fast, 21).cost == 12 + 0.25 + 0.125


def test_command_line(capsys, tmp_path):
    path = tmp_path / "problem.json"
    given = linked_file()
    path.write_text(json.dumps(given))
    code, out, err = run(capsys, "remat", str(path), "--seconds", "0", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {"events", "stalls", "bytes_to_host", "bytes_to_device", "host_peak_bytes"} <= set(found)
    assert found["bytes_to_host"] > 0
    assert "out 0" in found["events"]
    code, out, _ = run(capsys, "remat", str(path), "--seconds", "0")
    assert code == 0
    for text in ("stalls ", "to host ", "to device ", "host peak ", "out 0, ", "proven "):
        assert text in out
    code, out, _ = run(capsys, "remat", str(path), "--host-budget", "0", "--json", "--seconds", "0")
    without = json.loads(out)
    assert set(without) == {"sequence", "cost", "peak_bytes", "bound_cost", "seconds"}
    assert without["cost"] >= found["cost"]
    code, out, _ = run(
        capsys, "remat", str(path), "--host-budget", "100", "--json", "--seconds", "0"
    )
    assert json.loads(out)["host_peak_bytes"] <= 100
    del given["link"]
    path.write_text(json.dumps(given))
    code, _, err = run(capsys, "remat", str(path), "--host-budget", "1KiB")
    assert code == 2
    assert "has no link to the host" in err


def linked_file():
    problem = training_chain(20)
    nodes = [
        {"id": node, "cost": problem.cost[node], "bytes": 100, "inputs": list(problem.inputs[node])}
        for node in problem.order
    ]
    return {"nodes": nodes, "budget": 1200, "link": {"to_host": 100, "to_device": 100}}
