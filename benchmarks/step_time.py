"""Seconds of a training step, graphc against torch eager, measured in turn in one run.

Both run on all cores. Each line is the median over steps after a warm-up, taken in alternating
blocks so that neither has the quieter machine. Run: python benchmarks/step_time.py [--steps N]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.ir.types import as_dtype
from graphc.models import MODELS

Step = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A network of the zoo, its sizes, and the sizes that its twin in torch_networks.py takes."""

    label: str
    model: str
    optimizer: str
    sizes: Mapping[str, int]
    peer: str
    peer_sizes: tuple[str, ...]


MLP = {"layers": 50, "hidden": 1024, "inputs": 784, "classes": 10, "batch": 512}
PREACT = {"depth": 29, "batch": 32, "image": 32, "classes": 10}
LSTM = {
    "seq_len": 16, "batch": 64, "layers": 4, "hidden": 1024, "inputs": 50, "classes": 5000,
}  # fmt: skip
GPT = {
    "layers": 4, "width": 128, "heads": 4, "seq_len": 128, "batch": 16, "vocab": 256,
    "positions": 128, "drop": 0,
}  # fmt: skip
MLP_PEER = ("layers", "hidden", "inputs", "classes")
CASES = (
    Case("mlp 50 x 1024, batch 512, sgd", "mlp", "sgd", MLP, "mlp", MLP_PEER),
    Case("mlp 50 x 1024, batch 512, adam", "mlp", "adam", MLP, "mlp", MLP_PEER),
    Case(
        "preact_resnet 29, batch 32, sgd", "preact_resnet", "sgd", PREACT,
        "preact_resnet", ("depth", "classes"),
    ),
    Case(
        "lstm 4 x 1024, T=16, batch 64, sgd", "lstm", "sgd", LSTM,
        "Lstm", ("layers", "hidden", "inputs", "classes"),
    ),
    Case(
        "gpt2 4 x 128, T=128, batch 16, adam", "gpt2", "adam", GPT,
        "Gpt", ("layers", "width", "heads", "seq_len", "vocab"),
    ),
)  # fmt: skip


def graphc_program(case: Case) -> graphc.Program:
    settings = {"sgd": graphc.optim.SGD(1e-3), "adam": graphc.optim.Adam(1e-3)}
    return graphc.compile(MODELS[case.model](**case.sizes), optimizer=settings[case.optimizer])


def draw_feeds(program: graphc.Program) -> dict[str, np.ndarray]:
    """Normal numbers for floats; integers below 10, which every case has classes for."""
    rng = np.random.default_rng(0)
    feeds = {}
    for source in program.graph.inputs:
        if source.default is None:
            is_float = source.type.dtype != as_dtype("int32")
            drawn = (
                rng.standard_normal(source.shape) if is_float else rng.integers(0, 10, source.shape)
            )
            feeds[source.name] = drawn.astype(source.type.dtype.numpy)
    return feeds


def torch_step(case: Case, feeds: Mapping[str, np.ndarray]) -> Step | None:
    """The same network in torch eager, or None where torch is missing."""
    try:
        import torch
        import torch_networks
    except ImportError:
        return None
    torch.manual_seed(0)
    network = getattr(torch_networks, case.peer)(*(case.sizes[name] for name in case.peer_sizes))
    x = torch.from_numpy(feeds["tokens" if "tokens" in feeds else "x"])
    return torch_networks.Trainer(network, case.optimizer, (x, torch.from_numpy(feeds["labels"])))


def step_seconds(steps: Mapping[str, Step], count: int) -> dict[str, list[float]]:
    """Seconds by name of `count` steps, in alternating blocks of one step after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(count):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def measure(steps: Mapping[str, Step], count: int) -> dict[str, float]:
    """Median seconds by name."""
    return {name: statistics.median(s) for name, s in step_seconds(steps, count).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each")
    output_argument(parser, "step_time.json")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        program = graphc_program(case)
        feeds = draw_feeds(program)
        steps: dict[str, Step] = {"graphc": lambda p=program, f=feeds: p.step(f)}
        if peer := torch_step(case, feeds):
            steps["torch"] = peer
        found = measure(steps, options.steps)
        rows.append(
            {
                "network": case.label,
                "graphc_seconds": found["graphc"],
                "torch_seconds": found.get("torch"),
                "ratio": found["graphc"] / found["torch"] if "torch" in found else None,
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
