"""Plans of torch's training steps at byte budgets, against eager and torch.utils.checkpoint.

Each of the modules of tests/torch_cases is planned at six budgets between the least peak that is
found and the peak of the plan that repeats nothing. A row tells the planned and the measured peak,
whether gradients, buffers and the random state are those of ``backend="aot_eager"`` to the bit, and
the step's time over eager's. Each of the module's blocks is checkpointed, too, and graphc plans at
the peak that was measured of that, or at its least where that is more. Times are medians of steps
that are taken in turn.

Run: python benchmarks/torch_budgets.py [MODULE ...] [--steps N]
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import circumstances, output_argument, print_table, write_json
from torch.utils.checkpoint import checkpoint
from turns import measure

import graphc

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from torch_cases.modules import MODULES
from torch_cases.steps import Bits, Run, by_aot_eager, same_bits

FRACTIONS = 0.9, 0.7, 0.5, 0.35, 0.2, 0.1
"""Where the budgets lie, as parts of the way from the least peak to the plain one."""
EQUAL = "at equal bytes"
Row = dict[str, Any]


def eager(name: str) -> Run:
    module, args = MODULES[name]("full")
    return Run(module, module, args)


def checkpointed(name: str) -> Run:
    """Every block of the module checkpointed."""
    module, args = MODULES[name]("full")
    for block in getattr(module, "network", module).blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return Run(module, module, args)


def planned(name: str, budget: int) -> Run:
    module, args = MODULES[name]("full")
    return Run(module, graphc.torch.plan(module, args, budget=budget), args)


def budgets_of(name: str) -> tuple[int, int]:
    """The least peak that is found, and that of the plan that repeats nothing."""
    peaks = [point.peak_bytes for point in graphc.torch.frontier(*MODULES[name]("full"))]
    return min(peaks), max(peaks)


def row_at(budget: int, run: Run, wanted: Bits) -> Row:
    """All of a row but its time."""
    same = same_bits(run.bits(), wanted)
    planned_bytes, measured = run.loss.report.peak_bytes, run.peak()
    return {
        "budget_bytes": budget,
        "planned_bytes": planned_bytes,
        "measured_bytes": measured,
        "measured_over_planned": measured / planned_bytes,
        **{f"{what}_equal": equal for what, equal in same.items()},
        "predicted_extra_time": run.loss.report.extra_time,
    }


def module_row(name: str, steps: int) -> Row:
    """A module's peaks, its rows by budget, and what checkpoint takes for the same bytes."""
    runs = {
        "eager": eager(name),
        "aot_eager": by_aot_eager(MODULES[name]("full")),
        "checkpoint": checkpointed(name),
    }
    left = {label: run.bits() for label, run in runs.items()}
    peaks = {label: run.peak() for label, run in runs.items()}
    least, most = budgets_of(name)
    budgets = {str(part): int(least + part * (most - least)) for part in FRACTIONS}
    budgets[EQUAL] = max(least, peaks["checkpoint"])
    plans = {label: planned(name, budget) for label, budget in budgets.items()}
    rows = {label: row_at(budgets[label], plans[label], left["aot_eager"]) for label in plans}
    seconds = measure({**runs, **plans}, steps)
    ratio = {label: found / seconds["eager"] for label, found in seconds.items()}
    for label, row in rows.items():
        row["time_over_eager"] = ratio[label]
    equal = rows.pop(EQUAL)
    return {
        "module": name,
        "eager_seconds": seconds["eager"],
        "eager_bytes": peaks["eager"],
        "aot_eager_bytes": peaks["aot_eager"],
        "aot_eager_over_eager": ratio["aot_eager"],
        "least_bytes": least,
        "plain_bytes": most,
        "budgets": [{"part_of_the_way": float(label), **row} for label, row in rows.items()],
        "checkpoint_bytes": peaks["checkpoint"],
        "checkpoint_over_eager": ratio["checkpoint"],
        "at_equal_bytes": equal,
        "over_checkpoint": equal["time_over_eager"] / ratio["checkpoint"],
    }


def line(row: Row) -> Row:
    """A module's row on the terminal."""
    places = [*row["budgets"], row["at_equal_bytes"]]
    return {
        "module": row["module"],
        "eager MiB": row["eager_bytes"] / 2**20,
        "least MiB": row["least_bytes"] / 2**20,
        "plain MiB": row["plain_bytes"] / 2**20,
        "measured/planned": max(place["measured_over_planned"] for place in places),
        "same bits": sum(
            place["gradients_equal"] and place["buffers_equal"] and place["random_state_equal"]
            for place in places
        ),
        "x eager at 0.9": row["budgets"][0]["time_over_eager"],
        "at 0.1": row["budgets"][-1]["time_over_eager"],
        "checkpoint": row["checkpoint_over_eager"],
        "over checkpoint": row["over_checkpoint"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=list(MODULES), metavar="MODULE")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each")
    output_argument(parser, "torch_budgets.json")
    options = parser.parse_args()
    before = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    rows = {row["module"]: row for row in before}
    for name in options.modules:
        torch.compiler.reset()
        gc.collect()
        rows[name] = module_row(name, options.steps)
        print_table([line(rows[name])])
        ordered = [rows[each] for each in MODULES if each in rows]
        write_json(options.output, {**circumstances(["graphc", "torch"]), "rows": ordered})
    print_table([line(row) for row in ordered])


if __name__ == "__main__":
    main()
