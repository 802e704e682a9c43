"""Orders of trees and series-parallel graphs against closed forms and brute force."""

import json
from functools import cache
from random import Random

import pytest
from loops import case
from planner.order.orders import is_legal
from planner.order.test_order import steps_of

from graphc.cli import main
from graphc.planner.order import Precedence, least_order
from graphc.planner.order.postorder import postorders


def shuffled(children, seed, sizes=None):
    """A graph as a problem, its nodes in a random topological order; `children` are operands."""
    random, count = Random(seed), len(children)
    waiting = [len(set(operands)) for operands in children]
    ready, order = [node for node in range(count) if not waiting[node]], []
    while ready:
        order.append(ready.pop(random.randrange(len(ready))))
        for node, operands in enumerate(children):
            if order[-1] in operands:
                waiting[node] -= 1
                if not waiting[node]:
                    ready.append(node)
    place = {node: step for step, node in enumerate(order)}
    rows = [(sorted({place[c] for c in children[node]}), [place[node]]) for node in order]
    given = [1] * count if sizes is None else [sizes[node] for node in order]
    return Precedence(steps_of(rows, given, live_out=[place[count - 1]]))


def binary_tree(depth):
    children = []

    def build(levels):
        operands = [build(levels - 1), build(levels - 1)] if levels else []
        children.append(operands)
        return len(children) - 1

    build(depth)
    return children


@pytest.mark.parametrize(
    ("depth", "seeds"),
    [
        (5, 1),  # at most as many steps as the exact search takes, which gives up
        (6, 8),
        pytest.param(5, 20, marks=pytest.mark.slow),
        pytest.param(6, 20, marks=pytest.mark.slow),
        pytest.param(7, 20, marks=pytest.mark.slow),
    ],
)
def test_shuffled_complete_trees_take_as_many_values_as_they_have_levels(depth, seeds):
    """Sethi and Ullman's number: a value for each level, and the result beside its operands."""
    for seed in range(seeds):
        problem = shuffled(binary_tree(depth), seed)
        order = least_order(problem)
        assert is_legal(problem, order)
        assert max(problem.profile(order)) == depth + 2


@pytest.mark.slow
def test_shuffled_trees_of_depth_8():
    for seed in range(20):
        problem = shuffled(binary_tree(8), seed)
        assert max(problem.profile(least_order(problem))) == 10


def random_tree(random, count):
    """Operands of each node; the last node is the root."""
    parent = [random.randrange(node + 1, count) for node in range(count - 1)]
    return [[n for n in range(node) if parent[n] == node] for node in range(count)]


def best_postorder(children, sizes):
    """Liu's closed form for the root: children by decreasing peak minus residual."""

    @cache
    def peak(node):
        level = most = 0
        for child in sorted(children[node], key=lambda c: sizes[c] - peak(c)):
            most = max(most, level + peak(child))
            level += sizes[child]
        return max(most, level + sizes[node])

    return peak(len(children) - 1)


def random_tree_of(seed):
    """Children, sizes and the shuffled problem of a random tree."""
    random = Random(seed)
    children = random_tree(random, random.randint(2, 60))
    sizes = [random.randint(1, 9) for _ in children]
    return children, sizes, shuffled(children, seed, sizes)


def test_postorders_of_trees_have_the_peak_of_lius_closed_form():
    for seed in range(50):
        with case(seed):
            children, sizes, problem = random_tree_of(seed)
            forward, backward = postorders(problem)
            assert is_legal(problem, forward)
            assert is_legal(problem, backward)
            assert max(problem.profile(forward)) == best_postorder(children, sizes)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 50), marks=pytest.mark.slow)])
def test_orders_of_trees_are_no_worse_than_their_postorders(seeds):
    for seed in seeds:
        with case(seed):
            children, sizes, problem = random_tree_of(seed)
            assert max(problem.profile(least_order(problem))) <= best_postorder(children, sizes)


def series_parallel(random, size):
    """Operands of each node of a random series-parallel graph between two nodes."""
    edges = [(0, 1)]
    count = 2
    while count < size:
        first, last = edges.pop(random.randrange(len(edges)))
        if random.random() < 0.5:
            edges += [(first, count), (count, last)]
            count += 1
        else:
            edges += [(first, count), (count, last), (first, last)]
            count += 1
    order, reached = [], set()

    def visit(node):
        if node not in reached:
            reached.add(node)
            for first, last in edges:
                if last == node:
                    visit(first)
            order.append(node)

    visit(1)
    place = {node: index for index, node in enumerate(order)}
    found = [[] for _ in order]
    for first, last in set(edges):
        found[place[last]].append(place[first])
    return found


def least_peak(problem):
    """The least peak over all sets of steps that may have run, by brute force."""
    count = len(problem)

    @cache
    def peak(done):
        if done == (1 << count) - 1:
            return 0
        best = 10**9
        for step in range(count):
            if done >> step & 1 or any(not done >> b & 1 for b in problem.predecessors[step]):
                continue
            after = done | 1 << step
            live = sum(
                problem.steps.bytes[value]
                for value in range(count)
                if done >> value & 1
                and (
                    value in problem.steps.live_out
                    or any(not done >> consumer & 1 for consumer in problem.consumers[value])
                )
            )
            best = min(best, max(live + problem.steps.bytes[step], peak(after)))
        return best

    return peak(0)


@pytest.mark.parametrize("seed", range(200))
def test_series_parallel_graphs_end_at_the_least_peak(seed):
    random = Random(seed)
    children = series_parallel(random, random.randint(4, 12))
    sizes = [random.randint(1, 5) for _ in children]
    problem = shuffled(children, seed, sizes)
    order = least_order(problem)
    assert is_legal(problem, order)
    assert max(problem.profile(order)) == least_peak(problem)


def test_the_command_orders_a_graph_from_a_file(tmp_path, capsys):
    children = binary_tree(3)
    leaves_first = sorted(range(len(children)), key=lambda node: len(children[node]))
    names = {node: index for index, node in enumerate(leaves_first)}
    # Children before parents: by height, all leaves at once.
    height = [0] * len(children)
    for node, operands in enumerate(children):
        height[node] = 1 + max((height[c] for c in operands), default=0)
    given = sorted(range(len(children)), key=lambda node: height[node])
    nodes = [
        {"id": names[n], "cost": 1, "bytes": 1, "inputs": [names[c] for c in children[n]]}
        for n in given
    ]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"nodes": nodes}))
    assert main(["order", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["peak_bytes"], found["given_peak_bytes"]) == (5, 9)
    assert sorted(found["order"]) == sorted(names.values())
    assert main(["order", str(path)]) == 0
    assert capsys.readouterr().out.startswith("peak       5 bytes")
