"""Expected step time and bytes of sizes chosen for published distributions of lengths.

length_histograms.json has the distributions, with their sources, as counts per bin of 8 lengths. A
step of BERT base on each length is planned for a GPU and timed by the model of its kernels, at some
lengths; times between are interpolated. Run: python benchmarks/lengths.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.cli.buckets import POINTS
from graphc.compiler.bucketing import Buckets, expected, interpolated, spread
from graphc.models import bert
from graphc.runtime.gpu.step_model import model_step

HISTOGRAMS = Path(__file__).parent / "length_histograms.json"
BATCH, K, PART_MASKED = 32, 6, 0.15
LEAST_POWER = 32
"""The smallest power of two that is used as a size."""


def build(seq_len: int) -> graphc.Value:
    masked = max(1, round(PART_MASKED * seq_len))
    return bert(seq_len=seq_len, batch=BATCH, masked=masked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="a100", help="a device profile")
    output_argument(parser, "lengths.json")
    options = parser.parse_args()
    given = {"optimizer": "adamw", "device": options.device, "precision": "bf16"}
    content = json.loads(HISTOGRAMS.read_text())
    step = content["bin"]
    largest = max(int(length) for each in content["distributions"] for length in each["counts"])
    points = spread(range(step, largest + 1, step), POINTS)
    seconds = [model_step(graphc.plan(build(point), **given)).seconds for point in points]
    cost = interpolated(points, seconds)
    rows = []
    for each in content["distributions"]:
        counts = {int(length): count for length, count in each["counts"].items()}
        best = graphc.buckets(counts, K, cost=cost, multiple_of=step)
        for name, sizes in (
            ("one size", (max(counts),)),
            ("powers of two", powers(max(counts))),
            (f"{K} chosen sizes", best.sizes),
        ):
            found = expected(counts, sizes, cost=cost)
            rows.append(row(each, name, found, cost(max(counts)), given))
    print_table([{k: v for k, v in each.items() if k != "sizes"} for each in rows])
    write_json(
        options.output,
        {
            **circumstances(("graphc", "numpy")),
            "device": options.device,
            "network": f"bert base, batch {BATCH}, bf16, AdamW",
            "modelled": True,
            "points": list(points),
            "seconds": seconds,
            "sources": {each["name"]: each["source"] for each in content["distributions"]},
            "rows": rows,
        },
    )


def powers(largest: int) -> tuple[int, ...]:
    """Return the powers of two from `LEAST_POWER`, up to the first that holds the length."""
    found = [LEAST_POWER]
    while found[-1] < largest:
        found.append(2 * found[-1])
    return tuple(found)


def row(
    each: dict[str, Any], name: str, found: Buckets, one_size: float, given: dict[str, Any]
) -> dict[str, Any]:
    family = graphc.plan_family(build, {"seq_len": found.sizes}, **given)
    counts = {int(length): count for length, count in each["counts"].items()}
    filled = sum(found.size_of(length) * count for length, count in counts.items())
    return {
        "distribution": each["name"],
        "choice": name,
        "sizes": list(found.sizes),
        "step_ms": found.expected_cost * 1e3,
        "times_one_size": found.expected_cost / one_size,
        "times_every_length": found.expected_cost / found.separate_cost,
        "padding": 1 - each["lengths"] / filled,
        "arena_bytes": family.arena_bytes,
        "separate_arenas_bytes": sum(plan.arena_bytes for plan in family.plans),
    }


if __name__ == "__main__":
    main()
