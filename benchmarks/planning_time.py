"""How long a compile takes before the first step: build, differentiate, plan, check.

Chains of (linear, relu) layers, trained with plain SGD and planned as ``packed``, each in a process
of its own, so that the most memory it took is known. The time a node must not grow with the chain.
Each is planned with fusion, too, and up to 17,000 layers within nine tenths of its bytes; of these
what the graph and the plan hold for a node in the end is measured as well.

Then short chains planned by coloring, the costly way, whose placing alone is timed, beside packing.
The exponent of growth is that of the number of nodes between the first and the last row.
Run: python benchmarks/planning_time.py [LAYERS ...]
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import resource
import time
import tracemalloc
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.memory.allocate import Allocation

COLORED = (20, 40, 80, 160)
"""Layers of the chains that are colored; of longer ones only the cheap order is tried."""

BUDGETED, PART = 17_000, 0.9
"""The longest chain that is planned within a budget, and the part of its bytes that it has."""


def chain(layers: int) -> graphc.Value:
    h: graphc.Value = graphc.input("x", (4, 8))
    for number in range(layers):
        with graphc.scope(f"layer{number}"):
            h = graphc.relu(graphc.linear(h, 8, bias=False))
    return graphc.mean(h)


def measure(layers: int) -> dict[str, Any]:
    compiled(100)  # imports and caches
    before = resident_mib()
    row = compiled(layers)
    # What one node's graph, passes and plan take at the worst time.
    row["peak_mib"] = resident_mib()
    row["kib_per_node"] = (row["peak_mib"] - before) * 1024 / row["nodes"]
    return row


def fused(layers: int) -> float:
    """Seconds of building and planning with fusion."""
    compiled(100)
    return seconds(layers, fuse=True)


def within_budget(layers: int) -> float | None:
    """Seconds of building and planning within a part of the bytes."""
    if layers > BUDGETED:
        return None
    seconds(100, budget=budget(100))  # loads the machine code of loops
    return seconds(layers, budget=budget(layers))


def held(layers: int) -> float | None:
    """KiB a node that the finished plan holds, its graph included."""
    if layers > BUDGETED:
        return None
    compiled(100)
    tracemalloc.start()
    plan = graphc.plan(chain(layers), optimizer=graphc.optim.SGD())
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / 1024 / len(plan.graph.nodes)


def budget(layers: int) -> int:
    return int(PART * graphc.plan(chain(layers), optimizer=graphc.optim.SGD()).arena_bytes)


def seconds(layers: int, **options: Any) -> float:
    started = time.perf_counter()
    graphc.plan(chain(layers), optimizer=graphc.optim.SGD(), **options)
    return time.perf_counter() - started


def resident_mib() -> float:
    """The most memory that the process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def placed(layers: int) -> dict[str, Any]:
    """Seconds in which values get their places, by packing and by coloring."""
    row: dict[str, Any] = {"layers": layers}
    for strategy in ("packed", "coloring"):
        plan = graphc.plan(
            chain(layers), optimizer=graphc.optim.SGD(), reorder=False, allocate=strategy
        )
        allocation = Allocation(plan.graph)
        allocation.tenants(strategy)  # which both strategies need first
        started = time.perf_counter()
        allocation.placed(strategy)
        row |= {
            "nodes": len(plan.graph.nodes),
            f"{strategy}_seconds": time.perf_counter() - started,
        }
        row[f"{strategy}_over_live"] = plan.arena_bytes / plan.live_bytes
    return row


def exponent(rows: list[dict[str, Any]], key: str) -> float:
    """The power of the number of nodes with which a column grows."""
    first, last = rows[0], rows[-1]
    return math.log(last[key] / first[key]) / math.log(last["nodes"] / first["nodes"])


def compiled(layers: int) -> dict[str, Any]:
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
    parser.add_argument("layers", nargs="*", type=int, default=[170, 1700, 17_000, 50_000])
    output_argument(parser, "planning_time.json")
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.map(measure, options.layers, chunksize=1)
        for row in rows:
            row["fused_seconds"] = pool.apply(fused, (row["layers"],))
            row["budget_seconds"] = pool.apply(within_budget, (row["layers"],))
            row["held_kib_per_node"] = pool.apply(held, (row["layers"],))
    print_table(rows)
    per_node = [row["microseconds_per_node"] for row in rows]
    print(f"time per node, largest over smallest: {max(per_node) / min(per_node):.2f}")
    placed(10)
    colored = [placed(layers) for layers in COLORED]
    print_table(colored)
    exponents = {
        "compile": exponent(rows, "total_seconds"),
        "packing": exponent(colored, "packed_seconds"),
        "coloring": exponent(colored, "coloring_seconds"),
    }
    print("exponents: " + ", ".join(f"{name} {each:.2f}" for name, each in exponents.items()))
    content = {"rows": rows, "placed": colored, "exponents": exponents}
    write_json(options.output, {**circumstances(["graphc", "networkx", "numpy"]), **content})


if __name__ == "__main__":
    main()
