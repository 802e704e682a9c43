"""Training steps of GPT-2 XL with AdamW, with the moments on the device and on the host.

Bytes are those of plans without a budget, times are modeled: the roofline of a device, and the link
to its host (graphc/devices/links.py). Run: python benchmarks/host_states.py
"""

from __future__ import annotations

import argparse
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import MODELS
from graphc.plans.copy_model import model_copies

BATCH, LENGTH = 8, 1024

CASES = (("a100", "fp32", 1), ("a100", "bf16", 1), ("h100", "bf16", 1), ("h100", "bf16", 4))
"""Device, precision and micro-batches of a step."""


def measure(device: str, precision: str, accumulate: int) -> dict[str, Any]:
    """Plan a step with moments in both places."""
    row: dict[str, Any] = {"device": device, "precision": precision, "accumulate": accumulate}
    for place, states in (("device", "none"), ("host", "moments")):
        plan = graphc.plan(
            MODELS["gpt2"](size="xl", batch=BATCH, seq_len=LENGTH),
            optimizer=graphc.optim.AdamW(), device=device, precision=precision,
            accumulate=accumulate, host_states=states,
        )  # fmt: skip
        step = model_copies(plan)
        row |= {
            f"{place}_arena_bytes": plan.arena_bytes,
            f"{place}_state_bytes": plan.state_bytes,
            f"{place}_step_ms": 1e3 * step.seconds,
            f"{place}_stall_ms": 1e3 * step.stall_seconds,
            f"{place}_planning_seconds": plan.planning_seconds,
        }
        row["host_bytes"] = plan.host_bytes
    return row


def main() -> None:
    """Plan all cases, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    output_argument(parser, "host_states.json")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        rows.append(measure(*case))
        print_table(rows[-1:])
    content = {**circumstances(["graphc", "numpy"]), "batch": BATCH, "length": LENGTH}
    write_json(options.output, {**content, "rows": rows})


if __name__ == "__main__":
    main()
