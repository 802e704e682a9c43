"""Plans against a replay by hand, another library's shortest path, and brute limits."""

import itertools
import json

import networkx
import numpy as np
import pytest
from cli.running import run
from planner.problems import random_problem, training_chain

from graphc.errors import BudgetError, OptionError, ProblemError
from graphc.planner.given import measure, replay, solve
from graphc.planner.given.problem import parse_problem, read_problem
from graphc.planner.given.replay import replay_steps


def test_replay_by_hand():
    problem = parse_problem(
        {
            "nodes": [
                {"id": 5, "cost": 2, "bytes": 10},
                {"id": 6, "cost": 3, "bytes": 20, "inputs": [5], "workspace": 7},
                {"id": 7, "cost": 1, "bytes": 1, "inputs": [6]},
                {"id": 8, "cost": 1, "bytes": 1, "inputs": [5, 7]},
            ],
            "outputs": [8],
            "fixed_bytes": 100,
        }
    )
    found = replay(problem, [5, 6, 7, 8])
    assert (found.cost, found.peak_bytes, found.peak_step) == (7, 137, 1)
    # the first node dropped after its first use: 20 + 10 + 7 at step 1 all the same
    found = replay(problem, [5, 6, 7, 5, 8])
    assert (found.cost, found.peak_bytes) == (9, 137)
    for sequence, message in (
        ([6], "before node 5"),
        ([5, 6, 7], "does not compute the output 8"),
        ([5, 9], "no node has the id 9"),
        ([5, "6"], "expected the id of a node, got '6'"),
        ([5.0], "expected the id of a node, got 5.0"),
        ([[5]], r"expected the id of a node, got \[5\]"),
        (None, "sequence must be a list of ids, got None"),
        (3, "sequence must be a list of ids, got 3"),
    ):
        with pytest.raises(ProblemError, match=message):
            replay(problem, sequence)


def test_a_schedule_may_be_replayed_with_the_ids_that_solve_returns():
    """The ids are other nodes' positions."""
    nodes = [
        {"id": 2, "cost": 1, "bytes": 8},
        {"id": 0, "cost": 1, "bytes": 1},
        {"id": 1, "cost": 1, "bytes": 1, "inputs": [2, 0]},
    ]
    problem = parse_problem({"nodes": nodes})
    found = solve(problem)
    assert found.sequence == (2, 0, 1)
    assert replay(problem, np.array(found.sequence)).peak_bytes == found.peak_bytes == 10


@pytest.mark.parametrize("given", ["problem.json", {"nodes": []}, None])
def test_only_problems_are_solved_and_measured(given):
    for function, arguments in ((solve, (400,)), (replay, ([0],)), (measure, (["run 0"],))):
        with pytest.raises(ProblemError, match="problem must be a GivenProblem"):
            function(given, *arguments)


@pytest.mark.parametrize("path", [3, None, b"x", {}])
def test_only_paths_are_read(path):
    with pytest.raises(ProblemError, match="cannot read"):
        read_problem(path)


def shortest_by_networkx(problem, budget):
    """Cost of the cheapest schedule: a path over sets of live values."""
    graph = networkx.DiGraph()
    subsets = itertools.chain.from_iterable(
        itertools.combinations(problem.order, k) for k in range(len(problem.order) + 1)
    )
    goal = problem.live_out
    graph.add_nodes_from(("start", "end"))
    for subset in map(frozenset, subsets):
        size = problem.fixed_bytes + sum(problem.bytes[n] for n in subset)
        if size > budget:
            continue
        for node in problem.order:
            if node in subset:
                if node not in problem.pinned:
                    graph.add_edge(subset, subset - {node}, weight=0)
                continue
            needed = size + problem.bytes[node] + problem.workspace[node]
            if set(problem.inputs[node]) <= subset and needed <= budget:
                graph.add_edge(subset, subset | {node}, weight=problem.cost[node])
        if goal <= subset:
            graph.add_edge(subset, "end", weight=0)
    try:
        return networkx.dijkstra_path_length(graph, frozenset(), "end")
    except (networkx.NetworkXNoPath, networkx.NodeNotFound):
        return None


@pytest.mark.parametrize("seed", range(12))
def test_small_problems_are_solved_exactly(seed):
    problem = random_problem(8, seed, pinned=0.1)
    base = replay_steps(problem, problem.order).peak_bytes
    for budget in np.linspace(problem.bound_bytes, base, 4).astype(int):
        required = shortest_by_networkx(problem, int(budget))
        if required is None:
            with pytest.raises(BudgetError):
                solve(problem, int(budget))
            continue
        found = solve(problem, int(budget))
        assert found.cost == found.bound_cost == required
        assert found.peak_bytes <= budget


@pytest.mark.parametrize(
    ("seed", "part"),
    [
        pytest.param(seed, part, marks=[pytest.mark.slow] if seed % 2 != (part > 0.9) else [])
        for part in (0.95, 0.85)
        for seed in range(4)
    ],
)
def test_plans_fit_their_budget(seed, part):
    problem = random_problem(60, seed)
    base = replay_steps(problem, problem.order)
    budget = int(part * base.peak_bytes)
    found = solve(problem, budget, seconds=0)
    measured = replay(problem, found.sequence)
    assert measured.peak_bytes == found.peak_bytes <= budget
    assert measured.cost == found.cost >= found.bound_cost
    assert set(found.sequence) == set(problem.ids)
    assert solve(problem, budget, seconds=0).sequence == found.sequence


@pytest.mark.parametrize(("part", "extra"), [(0.5, 0.2), (0.3, 0.28)])
def test_chains_need_at_most_one_more_forward(part, extra):
    """One layer's forward is a third of its work, so a whole forward pass is 1/3."""
    problem = training_chain(100)
    base = replay_steps(problem, problem.order)
    found = solve(problem, int(part * base.peak_bytes), seconds=0)
    assert found.cost / base.cost - 1 <= extra


@pytest.mark.slow
def test_seventy_thousand_nodes():
    problem = training_chain(35_000)
    base = replay_steps(problem, problem.order)
    found = solve(problem, int(0.3 * base.peak_bytes), seconds=1)
    assert found.peak_bytes <= 0.3 * base.peak_bytes
    assert found.cost / base.cost - 1 <= 1 / 3


def test_budgets_that_cannot_be_met():
    for layers in (5, 60):
        problem = training_chain(layers)
        with pytest.raises(BudgetError, match="Raise the budget") as caught:
            solve(problem, 399)
        assert caught.value.bound_bytes == 400
        assert caught.value.least_bytes >= 400
        least = caught.value.least_bytes
        assert solve(problem, least, seconds=0).peak_bytes <= least
    assert solve(training_chain(60)).cost == replay_steps(training_chain(60), range(120)).cost


def test_a_budget_may_have_a_unit():
    problem = training_chain(60)
    written, number = (solve(problem, budget, seconds=0) for budget in ("1KiB", 1024))
    assert written.sequence == number.sequence
    assert written.peak_bytes <= 1024
    with pytest.raises(OptionError, match="budget"):
        solve(problem, "7 gigs")


def test_the_lines_of_an_error_add_up():
    """At the peak, node 1 reads 40 bytes and replaces them, beside a workspace of 30 and 7 fixed
    bytes."""
    nodes = [
        {"id": 0, "cost": 1, "bytes": 40},
        {"id": 1, "cost": 1, "bytes": 40, "inputs": [0], "workspace": 30, "overwrites": [[0, 0]]},
    ]
    problem = parse_problem({"nodes": nodes, "fixed_bytes": 7})
    with pytest.raises(BudgetError) as caught:
        solve(problem, 76)
    _, *lines = str(caught.value).splitlines()
    assert [line.split() for line in lines] == [
        ["40", "B", "1"], ["30", "B", "workspace"], ["7", "B", "fixed_bytes"],
    ]  # fmt: skip
    assert caught.value.least_bytes == 77


def test_an_output_takes_the_bytes_of_one_input_alone():
    """It may overwrite either of two inputs of 100 bytes; the other one stays."""
    nodes = [
        {"id": 0, "cost": 1, "bytes": 100},
        {"id": 1, "cost": 1, "bytes": 100},
        {"id": 2, "cost": 1, "bytes": 100, "inputs": [0, 1], "overwrites": [[0, 0], [0, 1]]},
    ]
    with pytest.raises(BudgetError) as caught:
        solve(parse_problem({"nodes": nodes}), 150)
    _, *lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == ["100", "100"]
    assert caught.value.least_bytes == 200


def test_a_budget_of_no_bytes_is_a_budget():
    """What has no bytes fits into it; for all else it is too little, not a mistake."""
    for size in (0, 1):
        nodes = [{"id": i, "cost": 1, "bytes": size, "inputs": [i - 1] * (i > 0)} for i in range(3)]
        problem = parse_problem({"nodes": nodes})
        if size == 0:
            assert solve(problem, 0).sequence == (0, 1, 2)
        else:
            with pytest.raises(BudgetError) as caught:
                solve(problem, 0)
            assert caught.value.least_bytes == caught.value.bound_bytes == 2
    with pytest.raises(OptionError, match="budget must be a size such as 7GiB"):
        solve(problem, -1)


def test_pinned_values_stay():
    nodes = [{"id": i, "cost": 1, "bytes": 10, "inputs": [i - 1] if i else []} for i in range(30)]
    nodes[0]["pinned"] = True
    nodes.append({"id": 30, "cost": 1, "bytes": 10, "inputs": [29, 5]})
    nodes.append({"id": 31, "cost": 1, "bytes": 10, "inputs": [30, 8]})
    problem = parse_problem({"nodes": nodes, "outputs": [31]})
    found = solve(problem, 40, seconds=0)
    assert found.sequence.count(0) == 1
    assert len(found.sequence) > 32


def test_command_line(capsys, tmp_path):
    path = tmp_path / "problem.json"
    nodes = [{"id": i, "cost": 1, "bytes": 10, "inputs": [i - 1] if i else []} for i in range(40)]
    nodes.append({"id": 40, "cost": 1.5, "bytes": 10, "inputs": [39, 20, 3]})
    path.write_text(json.dumps({"nodes": nodes, "outputs": [40], "budget": 40}))
    code, out, err = run(capsys, "remat", str(path), "--json", "--seconds", "0")
    assert code == 0, err
    found = json.loads(out)
    assert set(found) == {"sequence", "cost", "peak_bytes", "bound_cost", "seconds"}
    assert found["peak_bytes"] <= 40
    code, out, _ = run(capsys, "remat", str(path), "--budget", "1KiB")
    assert code == 0
    assert "runs       41, of 41 nodes" in out
    for arguments, message in (
        ([str(path), "--budget", "lots"], "a size such as 7GiB"),
        ([str(path), "--budget", "39"], "the lower bound is 40"),
        ([str(path), "--seconds", "-1"], "--seconds"),
        ([str(tmp_path / "gone")], "cannot read"),
    ):
        code, _, err = run(capsys, "remat", *arguments)
        assert code == (3 if "the lower bound" in message else 2)
        assert message in err
    code, _, err = run(capsys, "remat", str(path), "--seconds", "nan")
    assert (code, "--seconds must be a finite number of at least 0, got nan" in err) == (2, True)
    path.write_text(json.dumps({"nodes": [{"id": 0, "cost": 0, "bytes": 1}], "budget": 1}))
    _, out, _ = run(capsys, "remat", str(path))
    assert "cost       0, 0.00% above computing each node once" in out
    path.write_text(json.dumps({"nodes": nodes}))
    assert "pass --budget" in run(capsys, "remat", str(path))[2]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 30))]
)
def test_the_least_bytes_named_can_be_had(seed):
    problem = random_problem(25, seed, pinned=0.1)
    with pytest.raises(BudgetError) as caught:
        solve(problem, problem.bound_bytes - 1, seconds=0)
    error = caught.value
    found = solve(problem, error.least_bytes, seconds=0)
    assert found.peak_bytes <= error.least_bytes
    sizes = [size for _, size in error.values]
    assert error.node
    assert sizes == sorted(sizes, reverse=True)
    for name, size in error.values:
        if name.isdecimal():
            assert problem.bytes[problem.ids.index(int(name))] == size
        assert f"{size} B  {name}" in str(error)


@pytest.mark.parametrize("kept", [2, 5, 11, 17])
@pytest.mark.parametrize("how", ["pinned", "outputs"])
def test_values_that_stay_inside_a_chain(kept, how):
    layers = 20
    nodes = [
        {"id": i, "cost": 1, "bytes": 10 + 20 * (i % 3 == 0), "inputs": [i - 1] if i else []}
        for i in range(layers)
    ]
    for layer in range(layers - 1, 0, -1):
        nodes.append({"id": len(nodes), "cost": 1, "bytes": 10, "inputs": [len(nodes) - 1, layer]})
    given = {"nodes": nodes, "outputs": [len(nodes) - 1]}
    if how == "pinned":
        nodes[kept]["pinned"] = True
    else:
        given["outputs"].append(kept)
    problem = parse_problem(given)
    budget = int(0.7 * replay_steps(problem, problem.order).peak_bytes)
    found = solve(problem, budget, seconds=0)
    assert replay(problem, found.sequence).peak_bytes <= budget


def test_numbers_too_large_and_endless_searches(tmp_path):
    path = tmp_path / "problem.json"
    for text in (
        '{"nodes": [{"id": 0, "cost": 1, "bytes": 4611686018427387904}]}',
        '{"nodes": [{"id": 0, "cost": 1' + "0" * 400 + ', "bytes": 1}]}',
        '{"nodes": [{"id": 0, "cost": 1, "bytes": 1' + "0" * 5000 + "}]}",
    ):
        path.write_text(text)
        with pytest.raises(ProblemError):
            read_problem(str(path))
    for seconds in (float("nan"), float("inf"), -1, "1", None):
        with pytest.raises(ProblemError, match="seconds"):
            solve(training_chain(30), 500, seconds)
