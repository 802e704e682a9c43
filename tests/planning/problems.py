"""Problems to plan: chains with their backward pass, and random graphs."""

import numpy as np

from graphc.planning.given.problem import parse_problem


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
    readers = [[] for _ in range(layers)]
    for i in range(layers):
        sources = {i - 1} if i else set()
        if i > 1 and rng.random() < 0.4:
            sources.add(int(rng.integers(max(0, i - 5), i)))
        for source in sources:
            readers[source].append(i)
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
        reads = {gradient[reader] for reader in readers[i]} | {i, *nodes[i]["inputs"]}
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
