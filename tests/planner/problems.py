"""Problems to plan: chains with their backward pass, and random graphs."""

from dataclasses import replace

import numpy as np

from graphc.planner.given.problem import parse_problem
from graphc.planner.problem import Problem, Run


def training_chain(layers, size=100, cost=1.0):
    """A forward chain, then gradients that read the map of their own layer and the one before."""
    nodes = [
        {"id": i, "cost": cost, "bytes": size, "inputs": [i - 1] if i else []}
        for i in range(layers)
    ]
    nodes.append({"id": layers, "cost": cost, "bytes": size, "inputs": [layers - 1]})
    for layer in range(layers - 1, 0, -1):
        sources = [len(nodes) - 1, layer, layer - 1]
        nodes.append({"id": len(nodes), "cost": 2 * cost, "bytes": size, "inputs": sources})
    return parse_problem({"nodes": nodes, "outputs": [len(nodes) - 1]})


def random_problem(count, seed, pinned=0.0):
    """A graph whose nodes read one or two of the last ones; ids are not positions."""
    rng = np.random.default_rng(seed)
    nodes = []
    for i in range(count):
        window = np.arange(max(0, i - count // 3 - 3), i)
        size = min(len(window), int(rng.integers(1, 3)))
        sources = rng.choice(window, size, replace=False) if len(window) else []
        nodes.append(
            {
                "id": 1000 - i,
                "cost": int(rng.integers(1, 20)),
                "bytes": int(rng.integers(1, 100)),
                "inputs": [1000 - int(s) for s in sources],
                "workspace": int(rng.integers(0, 30)),
                "pinned": bool(rng.random() < pinned),
            }
        )
    return parse_problem({"nodes": nodes, "outputs": [1000 - (count - 1)], "fixed_bytes": 7})


def random_training(layers, seed):
    """A random forward graph of `layers` nodes, and the gradients of all of them but the first.

    A gradient reads those of the node's readers, and the values that the node reads and makes.
    """
    rng = np.random.default_rng(seed)
    nodes = []
    consumers = [[] for _ in range(layers)]
    for i in range(layers):
        sources = {i - 1} if i else set()
        if i > 1 and rng.random() < 0.4:
            sources.add(int(rng.integers(max(0, i - 5), i)))
        for source in sources:
            consumers[source].append(i)
        nodes.append(
            {
                "id": i,
                "cost": int(rng.integers(1, 6)),
                "bytes": int(rng.integers(1, 10)),
                "inputs": sorted(sources),
            }
        )
    gradient = {}
    for i in range(layers - 1, 0, -1):
        reads = {gradient[consumer] for consumer in consumers[i]} | {i, *nodes[i]["inputs"]}
        gradient[i] = len(nodes)
        nodes.append(
            {
                "id": len(nodes),
                "cost": int(rng.integers(1, 6)),
                "bytes": int(rng.integers(1, 10)),
                "inputs": sorted(reads),
            }
        )
    return parse_problem({"nodes": nodes, "outputs": [len(nodes) - 1]})


def with_boundary(problem, boundary):
    """The steps of a problem with the forward/backward boundary at a step."""
    return replace(problem, runs=(Run(0, boundary, len(problem)),))


def plan_seconds(node):
    """A cost of a node: its flops, and one for a launch."""
    return float(node.op.cost(node).flops + 1)


def random_steps(count, seed, runs=1):
    """Forward and backward passes with all that steps may have: several outputs or none, no inputs,
    values from outside, without bytes, overwritten or held, steps that run once."""
    rng = np.random.default_rng(seed)
    sizes, rows, once, live_out, parts = [], [], set(), set(), []

    def value():
        sizes.append(int(rng.integers(0, 12)) * int(rng.choice([1, 1, 1, 17])))
        return len(sizes) - 1

    outside = [value() for _ in range(3)]

    def put(inputs, makes):
        outputs = tuple(value() for _ in range(makes))
        pairs = []
        for output in outputs:
            for operand in inputs:
                if operand not in outside and rng.random() < 0.5:
                    sizes[output] = sizes[operand]
                    pairs.append((output, operand))
        rows.append((tuple(inputs), outputs, pairs))
        return outputs

    for _ in range(runs):
        start, made = len(rows), []
        for _ in range(count):
            pool = [*made[-6:], int(rng.choice(outside))]
            inputs = rng.choice(pool, int(rng.integers(0, min(4, len(pool) + 1))), replace=False)
            found = put(sorted(map(int, inputs)), int(rng.choice([0, 1, 1, 1, 1, 2, 3])))
            made += found
            if not found or rng.random() < 0.08:
                once.add(len(rows) - 1)
            elif rng.random() < 0.04:
                live_out.add(found[0])
        boundary, gradient = len(rows), set()
        for each in reversed(made):
            others = {int(rng.choice(made))} if rng.random() < 0.4 else set()
            found = put(sorted({each} | gradient | others), int(rng.choice([0, 1, 1, 2])))
            gradient = set(found[:1]) or gradient
        live_out |= gradient
        parts.append(Run(start, boundary, len(rows)))
    return Problem(
        cost=tuple(map(float, rng.integers(0, 9, len(rows)))),
        workspace=tuple(map(int, rng.integers(0, 8, len(rows)))),
        inputs=tuple(inputs for inputs, _, _ in rows),
        outputs=tuple(outputs for _, outputs, _ in rows),
        # Of the same size in the end, for a later pair may have changed that.
        overwrites=tuple(
            tuple((o, i) for o, i in pairs if sizes[o] == sizes[i]) for _, _, pairs in rows
        ),
        bytes=tuple(sizes),
        once=frozenset(once),
        live_out=frozenset(live_out),
        runs=tuple(parts),
        fixed_bytes=int(rng.integers(0, 50)),
    )
