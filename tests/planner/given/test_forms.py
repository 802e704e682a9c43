"""Problems with all that networks have: several outputs, in-place, control edges, a boundary."""

import itertools
import json

import numpy as np
import pytest
from cli.running import run

import graphc as g
from graphc.compiler.compilation import Compilation, traced
from graphc.compiler.compilation import run as run_passes
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.errors import BudgetError, ProblemError
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import gpt2
from graphc.planner.given import replay, solve
from graphc.planner.given.exact import cheapest, is_small
from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps


def random_forms(count, seed):
    """A small problem in which every form of the file may occur."""
    rng = np.random.default_rng(seed)
    nodes, values = [], []
    for i in range(count):
        sizes = [int(rng.integers(1, 6)) for _ in range(rng.choice([1, 1, 2]))]
        chosen = rng.choice(len(values), min(len(values), int(rng.integers(1, 3))), replace=False)
        inputs = [values[c] for c in chosen] if values else []
        pairs = []
        if inputs and rng.random() < 0.6:
            source, index = inputs[0]
            sizes[0] = nodes[source]["bytes"][index]
            pairs.append([0, 0])
        after = [int(rng.integers(0, i))] if i and rng.random() < 0.3 else []
        nodes.append(
            {
                "id": i,
                "cost": int(rng.integers(1, 6)),
                "bytes": sizes,
                "inputs": inputs,
                "workspace": int(rng.integers(0, 3)),
                "overwrites": pairs,
                "after": after,
            }
        )
        values += [[i, k] for k in range(len(sizes))]
    # Further outputs that others read, and pinned nodes: both stay, but only the second at once.
    given = {"nodes": nodes, "outputs": [values[-1]]}
    given["outputs"] += [value for value in values[:-1] if rng.random() < 0.25]
    for node in nodes:
        node["pinned"] = bool(rng.random() < 0.15)
    if seed % 2:
        given["boundary"] = count - 2
    return parse_problem(given)


def legal(problem, length):
    """All legal schedules of up to `length` nodes, with their measurements."""
    for size in range(len(problem.order), length + 1):
        for sequence in itertools.product(problem.order, repeat=size):
            if set(sequence) != set(problem.order):
                continue
            try:
                yield sequence, replay_steps(problem, sequence)
            except ProblemError:
                continue


@pytest.mark.parametrize("seed", range(24))
def test_the_optimum_is_that_of_all_schedules(seed):
    problem = random_forms(4, seed)
    assert is_small(problem)
    measured = [found for _, found in legal(problem, 7)]
    peaks = sorted({found.peak_bytes for found in measured})
    assert problem.bound_bytes <= peaks[0]
    for budget in peaks:
        least = min(found.cost for found in measured if found.peak_bytes <= budget)
        found = replay_steps(problem, cheapest(problem, budget))
        assert found.peak_bytes <= budget
        assert found.cost == least
        assert solve(problem, budget).cost == least
    # One byte less than any schedule of seven nodes; a longer one would have to be cheaper.
    sequence = cheapest(problem, peaks[0] - 1)
    assert sequence is None or len(sequence) > 7
    with pytest.raises(BudgetError) as caught:
        solve(problem, 0)
    least = caught.value.least_bytes
    assert solve(problem, least).peak_bytes == least
    assert cheapest(problem, least - 1) is None


@pytest.mark.parametrize("seed", range(8))
def test_the_checker_and_the_planners_count_the_same_bytes(seed):
    problem = random_forms(12, seed)
    rng = np.random.default_rng(seed)
    for _ in range(20):
        sequence = list(problem.order)
        for place in sorted(rng.integers(1, len(sequence), 4), reverse=True):
            repeated = int(rng.integers(0, place))
            if sequence[repeated] not in problem.once:
                sequence.insert(int(place), sequence[repeated])
        try:
            peak = replay_steps(problem, sequence).peak_bytes
        except ProblemError:
            continue
        assert peak == problem.peak(sequence)


def test_outputs_may_be_evicted_and_recomputed():
    nodes = [
        {"id": i, "cost": 1, "bytes": size, "inputs": [i - 1] if i else []}
        for i, size in enumerate((10, 1, 10, 1))
    ]
    problem = parse_problem({"nodes": nodes, "outputs": [0, 3]})
    assert solve(problem, 12).sequence == (0, 1, 2, 3, 0)


def test_nodes_without_outputs_run_if_they_are_pinned():
    nodes = [{"id": 0, "cost": 1, "bytes": 4}]
    nodes.append({"id": 1, "cost": 2, "bytes": [], "inputs": [0], "pinned": True})
    problem = parse_problem({"nodes": nodes, "outputs": [0]})
    assert solve(problem, 4).sequence == (0, 1)
    with pytest.raises(ProblemError, match="does not compute the pinned node 1"):
        replay_steps(problem, [0])
    nodes[0]["bytes"], nodes[1]["pinned"] = [], False
    nodes[1]["inputs"] = []
    with pytest.raises(ProblemError, match="expected at least one output or pinned node"):
        parse_problem({"nodes": nodes})


def steps_as_data(steps):
    """Return the steps of a planner as a problem in the format of `graphc remat`.

    Values that no step computes are left out.
    """
    names = {}
    for step, outputs in enumerate(steps.outputs):
        names |= {value: [step, index] for index, value in enumerate(outputs)}
    nodes = []
    for step, inputs in enumerate(steps.inputs):
        known = [value for value in inputs if value in names]
        outputs = steps.outputs[step]
        nodes.append(
            {
                "id": step,
                "cost": steps.cost[step],
                "bytes": [steps.bytes[value] for value in outputs],
                "inputs": [names[value] for value in known],
                "workspace": steps.workspace[step],
                "overwrites": [
                    [outputs.index(output), known.index(operand)]
                    for output, operand in steps.overwrites[step]
                    if operand in known
                ],
                "pinned": step in steps.once and not outputs,
            }
        )
    live_out = [names[value] for value in sorted(steps.live_out) if value in names]
    return {"nodes": nodes, "outputs": live_out, "boundary": steps.runs[0].boundary}


def network_as_data():
    """A training step of a small GPT-2 as the file describes it, and its steps in the planner."""
    loss = gpt2(layers=2, width=32, heads=2, seq_len=32, batch=2, vocab=50)
    options = PlanOptions(loss, optimizer=g.optim.SGD())
    graph = run_passes(traced(options), before("recompute"), Compilation(options))
    training = TrainingGraph(Allocation(graph, options.target), lambda node: 1.0, False)
    found = steps_as_data(training.steps)
    for node in found["nodes"]:
        node["cost"] = 1 + node["id"] % 3
    return found


def test_a_network_can_be_given_as_data():
    problem = parse_problem(network_as_data())
    assert any(len(values) > 1 for values in problem.outputs)
    assert any(problem.overwrites)
    once = replay_steps(problem, problem.order)
    assert once.peak_bytes == problem.peak(problem.order)
    for part in (0.8, 0.6):
        budget = int(part * once.peak_bytes)
        found = solve(problem, budget, seconds=0)
        assert replay(problem, found.sequence).peak_bytes == found.peak_bytes <= budget
        boundary = problem.ids[problem.runs[0].boundary]
        backward = [node for node in found.sequence if node >= boundary]
        assert len(backward) == len(set(backward))
        assert found.bound_cost <= found.cost


def test_control_edges_are_kept():
    nodes = [
        {"id": 0, "cost": 1, "bytes": 4},
        {"id": 1, "cost": 1, "bytes": 8, "inputs": [0]},
        {"id": 2, "cost": 1, "bytes": 1, "inputs": [0], "after": [1]},
    ]
    problem = parse_problem({"nodes": nodes, "outputs": [1, 2]})
    with pytest.raises(ProblemError, match="before node 1, which must run first"):
        replay_steps(problem, [0, 2, 1])
    assert cheapest(problem, 13) == [0, 1, 2]
    # Node 1 runs for node 2 alone, without any output.
    assert parse_problem({"nodes": nodes, "outputs": [2]}).ids == (0, 1, 2)
    nodes[2].pop("after")
    free = parse_problem({"nodes": nodes, "outputs": [1, 2]})
    assert replay_steps(free, [0, 2, 1]).cost == 3


def test_nodes_from_the_boundary_on_run_once():
    problem = parse_problem(
        {
            "nodes": [
                {"id": 0, "cost": 1, "bytes": 4},
                {"id": 1, "cost": 1, "bytes": 4, "inputs": [0]},
                {"id": 2, "cost": 1, "bytes": 9, "inputs": []},
                {"id": 3, "cost": 1, "bytes": 1, "inputs": [2, 1]},
            ],
            "boundary": 1,
        }
    )
    with pytest.raises(ProblemError, match="recomputes the backward node 1"):
        replay_steps(problem, [0, 1, 2, 1, 3])
    assert replay_steps(problem, [0, 1, 0, 2, 3]).cost == 5
    with pytest.raises(BudgetError) as caught:
        solve(problem, 13)
    assert caught.value.least_bytes == 14


def test_outputs_overwrite_inputs_that_die():
    node = {"id": 1, "cost": 1, "bytes": 6, "inputs": [0], "overwrites": [[0, 0]]}
    nodes = [{"id": 0, "cost": 1, "bytes": 6}, node]
    assert solve(parse_problem({"nodes": nodes}), 6).peak_bytes == 6
    kept = parse_problem({"nodes": nodes, "outputs": [0, 1]})
    assert replay_steps(kept, [0, 1]).peak_bytes == 12


def test_the_commands_take_all_forms(capsys, tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(network_as_data()))
    code, out, err = run(capsys, "order", str(path), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["peak_bytes"] <= found["given_peak_bytes"]
    budget = str(int(0.7 * found["given_peak_bytes"]))
    code, out, err = run(capsys, "remat", str(path), "--budget", budget, "--seconds", "0", "--json")
    assert code == 0, err
    assert json.loads(out)["peak_bytes"] <= int(budget)
