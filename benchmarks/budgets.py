"""Ten budgets for every network of the zoo: do they hold, what do they cost, how far from a bound?

Budgets lie between the smallest arena found and that without recomputation, at equal distances. The
gap is the plan's step time over the least that is proven within the same bytes, by the cost model.
The best of the paper's policies that fit is planned in the same run. With --wide, networks with
layers over time and with long skips instead, at shares of the same way.
Run: python benchmarks/budgets.py [--wide] [NETWORK ...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from report import circumstances, output_argument, print_table, write_json
from wide_networks import gru, uvit

import graphc
from graphc.models import MODELS

BUDGETS = 10
OTHERS = ("none", "cheap", "sublinear", "recursive")
SIZES: dict[str, dict[str, Any]] = {
    "lstm": {"seq_len": 32},
    "mlp": {"layers": 50, "hidden": 1024, "batch": 512},
    "preact_resnet": {"depth": 164},
}
"""Where the defaults are not the size of interest."""

COMPOSED = ("bert", "gpt2", "vit")
"""Networks with composed attention, as in earlier tables: its maps are (rows x columns)."""

EVENLY = tuple(index / (BUDGETS - 1) for index in range(BUDGETS))
SHARES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7)
"""Shares of the way from the least arena to that without recomputation."""

WIDE: dict[str, Callable[[], graphc.Value]] = {
    "lstm, 64 steps": partial(MODELS["lstm"], seq_len=64),
    "lstm, 128 steps": partial(MODELS["lstm"], seq_len=128),
    "lstm, 256 steps": partial(MODELS["lstm"], seq_len=256),
    "gru, 64 steps": partial(gru, seq_len=64),
    "unet, batch 8": partial(MODELS["unet"], batch=8),
    "uvit, batch 64": partial(uvit, batch=64),
    "densenet121, batch 16": partial(MODELS["densenet121"], batch=16),
}
"""Networks that many values cross wherever they are cut."""


def plan(name: str, **options: Any) -> graphc.MemoryPlan:
    form = {"attention": "composed"} if name in COMPOSED else {}
    network = WIDE.get(name) or partial(MODELS[name], **SIZES.get(name, {}), **form)
    return graphc.plan(network(), optimizer=graphc.optim.SGD(), **options)


def measure(name: str, shares: tuple[float, ...]) -> list[dict[str, Any]]:
    others = [plan(name, recompute=policy) for policy in OTHERS]
    most = others[0].arena_bytes
    try:
        least = plan(name, budget=1).arena_bytes
    except graphc.BudgetError as error:
        least = error.least_bytes
    rows = []
    for share in shares:
        budget = least + int((most - least) * share)
        found = plan(name, budget=budget)
        assert found.certificate is not None, "a plan for a budget has a certificate"
        extra, bound = found.recomputation.extra_time_fraction, found.certificate.extra_time_bound
        fitting = [
            other.recomputation.extra_time_fraction
            for other in others
            if other.arena_bytes <= budget
        ]
        rows.append(
            {
                "network": name,
                "budget": budget,
                "share": share,
                "most": most,
                "arena_bytes": found.arena_bytes,
                "holds": found.arena_bytes <= budget,
                "extra_time": extra,
                "proven": bound,
                "gap": (1 + extra) / (1 + bound) - 1,
                "best_other": min(fitting, default=None),
                "seconds": found.planning_seconds,
            }
        )
    return rows


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    others = [row for row in rows if row["best_other"] is not None]
    return {
        "network": name,
        "least MiB": rows[0]["budget"] / 2**20,
        "most MiB": rows[0]["most"] / 2**20,
        "all hold": all(row["holds"] for row in rows),
        "monotone": all(
            b["extra_time"] <= a["extra_time"] + 1e-9 for a, b in itertools.pairwise(rows)
        ),
        "never worse": all(row["extra_time"] <= row["best_other"] + 1e-9 for row in others),
        "extra at least": rows[0]["extra_time"],
        "extra half way": min(rows, key=_from_half)["extra_time"],  # or nearest to it
        "median gap": statistics.median(row["gap"] for row in rows),
        "largest gap": max(row["gap"] for row in rows),
        "seconds": statistics.median(row["seconds"] for row in rows),
    }


def _from_half(row: dict[str, Any]) -> tuple[float, float]:
    return round(abs(row["share"] - 0.5), 9), -row["share"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", help="of the zoo, or of the wide ones")
    parser.add_argument("--wide", action="store_true", help="networks without narrow cuts")
    output_argument(parser, "budgets_wide.json" if "--wide" in sys.argv else "budgets.json")
    options = parser.parse_args()
    rows, summaries = [], []
    names, shares = (list(WIDE), SHARES) if options.wide else (sorted(MODELS), EVENLY)
    if unknown := set(options.networks) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    for name in options.networks or names:
        measured = measure(name, shares)
        rows += measured
        summaries.append(summary(name, measured))
        print_table(summaries[-1:])
    print_table(summaries)
    print(f"median gap of all {len(rows)} plans: {statistics.median(r['gap'] for r in rows):.2%}")
    content = {**circumstances(["graphc", "numpy", "scipy"]), "rows": rows, "summary": summaries}
    write_json(options.output, content)


if __name__ == "__main__":
    main()
