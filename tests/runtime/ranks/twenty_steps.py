"""Twenty steps of some networks in the ways that ranks are used: as a module, what a rank runs.

    mpiexec -n 2 python -m runtime.ranks.twenty_steps NETWORK FOLDER

writes the states of rank r after the steps of each way to FOLDER/WAY-r.npz.
"""

import sys
from pathlib import Path

import numpy as np

import graphc as g
from graphc.models import gpt2, lstm, preact_resnet
from graphc.runtime.feeds import random_feeds
from graphc.runtime.ranks.world import find_world

STEPS = 20
BATCH = 4
"""Of each of four ranks, and so much more of fewer."""

RANKS = 4


def mlp(batch, dtype):
    h, labels = g.input("x", (batch, 8), dtype), g.input("labels", (batch,), "int32")
    for layer in range(3):
        with g.scope(f"layer{layer}"):
            h = g.tanh(g.linear(h, 16))
    return g.softmax_cross_entropy(g.linear(h, 5), labels)


NETWORKS = {
    "mlp": mlp,
    "preact_resnet": lambda batch, dtype: preact_resnet(11, batch=batch, image=8, dtype=dtype),
    "lstm": lambda batch, dtype: lstm(3, batch, 2, 8, 4, 5, dtype),
    "gpt2": lambda batch, dtype: gpt2(
        layers=2, width=16, heads=2, seq_len=8, batch=batch, vocab=20, drop=0.0, dtype=dtype
    ),
}

MOMENTUM = {"optimizer": g.optim.SGD(0.02, momentum=0.9)}
ADAM = {"optimizer": g.optim.Adam(0.01, epsilon=1e-3)}
"""With an epsilon that keeps gradients which are zero but for rounding from becoming steps."""

WAYS = {
    "plain": ("float64", MOMENTUM),
    "clipped": ("float64", {**MOMENTUM, "clip_norm": 0.3}),
    "accumulated": ("float64", {**MOMENTUM, "accumulate": 2}),
    "adam": ("float64", ADAM),
    "sharded": ("float64", {**MOMENTUM, "shard": "states"}),
    "sharded clipped": ("float64", {**MOMENTUM, "clip_norm": 0.3, "shard": "states"}),
    "sharded accumulated": ("float64", {**MOMENTUM, "accumulate": 2, "shard": "states"}),
    "sharded adam": ("float64", {**ADAM, "shard": "states"}),
    "float32": ("float32", MOMENTUM),
    "bf16": ("float32", {**MOMENTUM, "precision": "bf16"}),
    "sharded bf16": ("float32", {**MOMENTUM, "precision": "bf16", "shard": "states"}),
}


def trained(network, dtype, options, rank, ranks):
    """The states of one of `ranks` after the steps, on its rows of the same joint batches."""
    own = BATCH * RANKS // ranks
    if ranks > 1:
        options = {**options, "ranks": ranks, "sync_norm": True}
    program = g.compile(NETWORKS[network](own, dtype), threads=1, **options)
    joint = g.plan(NETWORKS[network](own * ranks, dtype), **options | {"ranks": 1}).graph
    for step in range(STEPS):
        feeds = {}
        for source, array in random_feeds(joint, step).items():
            if source.default is None:
                mine = next(x for x in program.graph.inputs if x.name == source.name).shape
                axis = next((i for i, n in enumerate(mine) if n != array.shape[i]), 0)
                feeds[source.name] = np.split(array, ranks, axis)[rank]
        program.step(feeds)
    return {name: state for name, state in program.states.items() if "initial" not in name}


def main():
    network, folder = sys.argv[1], Path(sys.argv[2])
    world = find_world()
    for way, (dtype, options) in WAYS.items():
        states = trained(network, dtype, options, world.rank, world.size)
        np.savez(folder / f"{way}-{world.rank}.npz", **states)


if __name__ == "__main__":
    main()
