"""Recomputation, offload and both within a part of the bytes, for training steps given as data.

Each network's training step becomes a problem of `graphc remat`: a node for each kernel, with the
seconds that the cost model gives it on a device, and a link of PCIe 4 to the host. Parameters and
their state are left out. Budgets are parts of the live bytes without recomputation. Times are
modeled, not measured. Run: python benchmarks/offload.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.allocation.allocate import Allocation
from graphc.models import MODELS
from graphc.options import PlanOptions
from graphc.pipeline import Compilation, before, run, traced
from graphc.remat.given import HostLink, Problem, replay, solve
from graphc.remat.given.problem import parse_problem
from graphc.remat.offload.search import OffloadSearch
from graphc.remat.training_graph import TrainingGraph
from graphc.scheduling.problem import Problem as Steps

RATE = 25e9
"""Bytes per second of the link in each direction: PCIe 4 with 16 lanes."""

PARTS = (0.5, 0.25)
"""Budgets as parts of the live bytes without recomputation."""

PRECISIONS = ("fp32", "tf32")

NETWORKS: dict[str, Callable[[], graphc.Value]] = {
    "ResNet-50, batch 64": partial(MODELS["resnet"], depth=50, batch=64, form="common"),
    "U-Net, batch 16": partial(MODELS["unet"], batch=16),
    "BERT large, batch 16": partial(MODELS["bert"], size="large", batch=16),
    "GPT-2 medium, batch 8": partial(MODELS["gpt2"], size="medium", batch=8),
}


def training_steps(network: graphc.Value, device: str, precision: str) -> Steps:
    """Return the training step of a network as steps of a planner, with the seconds of the cost
    model."""
    options = PlanOptions(network, optimizer=graphc.optim.SGD(), device=device, precision=precision)
    graph = run(traced(options), before("recompute"), Compilation(options))
    allocation = Allocation(graph, options.target)
    return TrainingGraph(allocation, options.cost_model.seconds, False).steps


def steps_as_data(steps: Steps) -> dict[str, Any]:
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


def measure(name: str, precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Plan a network within each budget; extra times are fractions of its step's seconds."""
    steps = training_steps(NETWORKS[name](), options.device, precision)
    problem = parse_problem(steps_as_data(steps))
    base = replay(problem, problem.needed)
    rows = []
    for part in PARTS:
        budget = int(part * base.peak_bytes)
        alone = solve(problem, budget, options.seconds)
        linked = replace(problem, link=HostLink(RATE, RATE))
        found = solve(linked, budget, options.seconds)
        rows.append(
            {
                "network": name,
                "precision": precision,
                "nodes": len(problem.needed),
                "step_ms": 1e3 * base.cost,
                "peak_bytes": base.peak_bytes,
                "part": part,
                "recompute": alone.cost / base.cost - 1,
                "recompute_bound": alone.bound_cost / base.cost - 1,
                "offload": offload_alone(linked, budget, options.seconds) / base.cost - 1,
                "both": found.cost / base.cost - 1,
                "both_bound": found.bound_cost / base.cost - 1,
                "bytes_to_host": found.bytes_to_host,
                "stalls": found.stalls / base.cost,
                "recompute_seconds": alone.seconds,
                "both_seconds": found.seconds,
            }
        )
        print_table(rows[-1:])
    return rows


def offload_alone(problem: Problem, budget: int, seconds: float) -> float:
    """Return the seconds of the best plan found that recomputes nothing."""
    assert problem.link is not None, "the caller adds one"
    steps = problem.steps
    search = OffloadSearch(
        steps, problem.link, budget, lambda _: [range(len(steps))], frozenset(),
        limit=seconds, adds_recomputation=False,
    )  # fmt: skip
    found = search.run(None)
    assert found is not None, "every value may be copied"
    return found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="a100", help="a device profile")
    parser.add_argument("--seconds", type=float, default=10.0, help="time limit of each plan")
    output_argument(parser, "offload.json")
    options = parser.parse_args()
    rows = [row for p in PRECISIONS for name in NETWORKS for row in measure(name, p, options)]
    print_table(rows)
    content = {
        **circumstances(["graphc", "numpy", "scipy"]),
        "device": options.device,
        "bytes_per_second": RATE,
        "rows": rows,
    }
    write_json(options.output, content)


if __name__ == "__main__":
    main()
