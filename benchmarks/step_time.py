"""Seconds of a training step, graphc against torch eager, measured in turn in one run.

Both run on all cores. Each line is the median over steps after a warm-up, taken in alternating
blocks so that neither has the quieter machine. Run: python benchmarks/step_time.py [--steps N]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import mlp

LAYERS, HIDDEN, BATCH, INPUTS, CLASSES = 50, 1024, 512, 784, 10

Step = Callable[[], Any]


def feeds() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, INPUTS)).astype(np.float32)
    return x, rng.integers(0, CLASSES, BATCH).astype(np.int32)


def graphc_step(optimizer: str) -> tuple[Step, graphc.Program]:
    loss = mlp(LAYERS, HIDDEN, INPUTS, CLASSES, BATCH)
    settings = {"sgd": graphc.optim.SGD(1e-3), "adam": graphc.optim.Adam(1e-3)}
    program = graphc.compile(loss, optimizer=settings[optimizer])
    x, labels = feeds()
    return lambda: program.step(x=x, labels=labels), program


def torch_step(optimizer: str) -> Step | None:
    """The same network in torch eager, or None where torch is missing."""
    try:
        import torch
    except ImportError:
        return None
    widths = [INPUTS] + [HIDDEN] * LAYERS
    modules: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.Sequential(*modules, torch.nn.Linear(HIDDEN, CLASSES))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    updates = kinds[optimizer](network.parameters(), lr=1e-3)
    x, labels = feeds()
    x_torch, labels_torch = torch.from_numpy(x), torch.from_numpy(labels).long()

    def step() -> None:
        updates.zero_grad()
        torch.nn.functional.cross_entropy(network(x_torch), labels_torch).backward()
        updates.step()

    return step


def measure(steps: dict[str, Step], count: int) -> dict[str, float]:
    """Median seconds by name, in alternating blocks of one step."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(count):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each")
    output_argument(parser, "step_time.json")
    options = parser.parse_args()
    rows = []
    for optimizer in ("sgd", "adam"):
        step, program = graphc_step(optimizer)
        peer = torch_step(optimizer)
        found = measure({"graphc": step} | ({"torch": peer} if peer else {}), options.steps)
        rows.append(
            {
                "network": f"mlp {LAYERS} x {HIDDEN}, batch {BATCH}, {optimizer}",
                "graphc_seconds": found["graphc"],
                "torch_seconds": found.get("torch"),
                "ratio": found["graphc"] / found["torch"] if peer else None,
                "arena_bytes": program.plan.arena_bytes,
            }
        )
    print_table(rows)
    if rows[0]["torch_seconds"] is None:
        print("torch is not installed, so there is nothing to compare with")
    packages = ["graphc", "numpy", "scipy", "torch"]
    write_json(options.output, {**circumstances(packages), "rows": rows})


if __name__ == "__main__":
    main()
