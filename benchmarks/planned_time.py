"""Seconds of a step by its nodes' measured times, against those that whole steps take.

Each network of step_cases.py is profiled as `graphc profile` does it; the sum over its nodes is set
beside the median of whole steps in the same process. Run: python benchmarks/planned_time.py
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from report import circumstances, output_argument, print_table, write_json
from step_cases import CASES, Case, draw_feeds, graphc_program
from turns import measure

import graphc
from graphc.plans.cost_model import CostModel

STEPS = 9


def row_of(case: Case, steps: int) -> dict[str, object]:
    """The figures of one network."""
    program = graphc_program(case)
    feeds = draw_feeds(program.graph)
    measured = measure({"step": lambda: program.step(feeds)}, steps)["step"]
    costs = CostModel(program.plan.device, graphc.profile(program.plan))
    planned = sum(costs.seconds(node) for node in program.graph.nodes)
    return {
        "network": case.label,
        "planned_seconds": planned,
        "measured_seconds": measured,
        "planned_over_measured": planned / measured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=re.compile, default="", metavar="PATTERN")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed steps of each")
    output_argument(parser, "planned_time.json")
    options = parser.parse_args()
    rows = [row_of(c, options.steps) for c in CASES if re.search(options.rows, c.label)]
    print_table(rows)
    content = {**circumstances(["graphc", "llvmlite", "numpy", "onednn-cpu-gomp"]), "rows": rows}
    write_json(Path(options.output), content)


if __name__ == "__main__":
    main()
