"""Plans of training steps with recomputation, copies to the host and both, on three GPUs.

Each network's step is planned by `graphc.plan` within parts of the bytes that it needs beside its
states without a budget: with recomputation alone, and with copies to 64 GiB of host memory. Copies
alone are a schedule for live bytes, without packing. Times are modeled: the roofline
of a device, and the link to its host (graphc/devices/links.py), PCIe 3, 4 and 5.
Run: python benchmarks/offload.py [--rows PATTERN]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.devices.device import find_device
from graphc.devices.links import host_link
from graphc.errors import BudgetError
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import MODELS
from graphc.planner.copies.plans import Copying
from graphc.plans.copy_model import model_copies
from graphc.plans.memory_plan import MemoryPlan

DEVICES = {"v100": "fp32", "a100": "tf32", "h100": "tf32"}
"""Device → precision of its products."""

PARTS = (0.5, 0.25)
"""Budgets, as parts of the bytes beside the states that a plan without a budget needs."""

HOST_BUDGET = "64GiB"

NETWORKS: dict[str, Callable[[], graphc.Value]] = {
    "ResNet-152, batch 64": partial(MODELS["resnet"], depth=152, batch=64, form="common"),
    "U-Net, batch 16": partial(MODELS["unet"], batch=16),
    "BERT large, batch 16": partial(MODELS["bert"], size="large", batch=16),
    "GPT-2 medium, batch 8": partial(MODELS["gpt2"], size="medium", batch=8),
}


def measure(name: str, device: str, precision: str) -> list[dict[str, Any]]:
    """Plan a network within each budget; extra times are fractions of its step's seconds."""
    options: dict[str, Any] = {
        "optimizer": graphc.optim.SGD(), "device": device, "precision": precision,
    }  # fmt: skip
    plain = graphc.plan(NETWORKS[name](), **options)
    once = model_copies(plain).seconds
    rows = []
    for part in PARTS:
        budget = plain.state_bytes + int(part * (plain.arena_bytes - plain.state_bytes))
        alone = planned(name, budget, options)
        both = planned(name, budget, options, HOST_BUDGET)
        rows.append(
            {
                "network": name,
                "device": device,
                "precision": precision,
                "part": part,
                "nodes": len(plain.graph.nodes),
                "step_ms": 1e3 * once,
                "plain_bytes": plain.arena_bytes,
                "budget_bytes": budget,
                **figures("recompute", alone, once),
                "offload": copies_alone(name, budget, options) / once - 1,
                **figures("both", both, once),
                "stalls": None if both is None else model_copies(both).stall_seconds / once,
                "host_bytes": None if both is None else both.host_bytes,
            }
        )
        print_table(rows[-1:])
    return rows


def planned(
    name: str, budget: int, options: dict[str, Any], host_budget: str | None = None
) -> MemoryPlan | None:
    """Return a network's plan within a budget, or None if none was found."""
    try:
        return graphc.plan(NETWORKS[name](), budget=budget, host_budget=host_budget, **options)
    except BudgetError:
        return None


def figures(prefix: str, plan: MemoryPlan | None, once: float) -> dict[str, Any]:
    """Return the extra time of a plan with its bound, as fractions of `once` seconds, and the
    seconds of planning; they are None without a plan."""
    if plan is None or plan.certificate is None:
        return dict.fromkeys((prefix, f"{prefix}_bound", f"{prefix}_seconds"))
    return {
        prefix: model_copies(plan).seconds / once - 1,
        f"{prefix}_bound": plan.certificate.extra_time_bound,
        f"{prefix}_seconds": plan.planning_seconds,
    }


def copies_alone(name: str, budget: int, options: dict[str, Any]) -> float:
    """Return the seconds of a schedule that recomputes nothing."""
    chosen = PlanOptions(NETWORKS[name](), budget=budget, **options)
    graph = run(traced(chosen), before("recompute"), Compilation(chosen))
    steps = TrainingGraph(Allocation(graph, chosen.target), chosen.cost_model.seconds, False).steps
    copying = Copying(steps, host_link(find_device(options["device"])), steps.live_out)
    found = copying.planned(copying.base(steps.order), budget)
    return float("nan") if found is None else found.seconds


def main() -> None:
    """Plan all networks for all devices, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=re.compile, default="", help="only networks that match")
    output_argument(parser, "offload.json")
    options = parser.parse_args()
    rows = []
    for name in NETWORKS:
        if re.search(options.rows, name):
            for device, precision in DEVICES.items():
                rows += measure(name, device, precision)
    write_json(options.output, {**circumstances(["graphc", "numpy"]), "rows": rows})


if __name__ == "__main__":
    main()
