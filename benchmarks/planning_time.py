"""How long a compile takes before the first step: build, differentiate, plan, check.

Chains of (linear, relu) layers, trained with plain SGD and planned as ``packed``. The time a node
must not grow with the chain. Run: python benchmarks/planning_time.py [LAYERS ...]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc


def chain(layers: int) -> graphc.Value:
    h: graphc.Value = graphc.input("x", (4, 8))
    for number in range(layers):
        with graphc.scope(f"layer{number}"):
            h = graphc.relu(graphc.linear(h, 8, bias=False))
    return graphc.mean(h)


def measure(layers: int) -> dict[str, Any]:
    started = time.perf_counter()
    loss = chain(layers)
    built = time.perf_counter()
    plan = graphc.plan(loss, optimizer=graphc.optim.SGD())
    planned = time.perf_counter()
    nodes = len(plan.graph.nodes)
    return {
        "layers": layers,
        "nodes": nodes,
        "build_seconds": built - started,
        "plan_and_check_seconds": planned - built,
        "total_seconds": planned - started,
        "microseconds_per_node": (planned - started) / nodes * 1e6,
        "arena_over_live": plan.arena_bytes / plan.live_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=[1000, 10_000, 30_000])
    output_argument(parser, "planning_time.json")
    options = parser.parse_args()
    measure(100)  # imports and caches
    rows = [measure(layers) for layers in options.layers]
    print_table(rows)
    per_node = [row["microseconds_per_node"] for row in rows]
    print(f"time per node, largest over smallest: {max(per_node) / min(per_node):.2f}")
    write_json(options.output, {**circumstances(["graphc", "numpy"]), "rows": rows})


if __name__ == "__main__":
    main()
