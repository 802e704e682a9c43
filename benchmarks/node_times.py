"""Where a step of graphc's goes: by op, against what the machine's cores and memory can do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from report import print_table
from step_cases import OPTIMIZERS, Case, network
from turns import timed

import graphc
from graphc.ir.graph import Node
from graphc.runtime.profile import node_seconds

Row = dict[str, Any]
TRIES = 5


@dataclass(frozen=True)
class Peak:
    """What the machine reaches, a second."""

    flops: float
    bytes: float


def measured_peak(side: int = 3072, size_bytes: int = 2**28) -> Peak:
    """By a product of large float32 matrices, and by a copy on all cores, read and written."""
    a, b, c = (np.ones((side, side), np.float32) for _ in range(3))
    source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
    cores = len(os.sched_getaffinity(0))
    parts = list(zip(np.split(target, cores), np.split(source, cores), strict=True))
    with ThreadPoolExecutor(cores) as pool:

        def copy() -> None:
            list(pool.map(lambda pair: np.copyto(*pair), parts))

        copying = min(timed(copy)[1] for _ in range(TRIES))
    multiplying = min(timed(lambda: np.matmul(a, b, out=c))[1] for _ in range(TRIES))
    return Peak(2 * side**3 / multiplying, 2 * size_bytes / copying)


def by_op(nodes: Sequence[Node], seconds: Sequence[float], peak: Peak) -> list[Row]:
    """A row an op, the longest first. Its part of the peak is the least time that its flops, or
    its bytes where they need longer, take at the machine's peak, over its time.
    """
    totals: dict[str, list[float]] = {}
    for node, found in zip(nodes, seconds, strict=True):
        cost = node.op.cost(node)
        moved = cost.bytes_read + cost.bytes_written
        total = totals.setdefault(node.op.name, [0, 0.0, 0, 0])
        for place, amount in enumerate((1, found, cost.flops, moved)):
            total[place] += amount
    rows = []
    for name, (count, spent, flops, moved) in totals.items():
        least, divisor = max(flops / peak.flops, moved / peak.bytes), max(spent, 1e-9)
        rows.append(
            {
                "op": name,
                "nodes": int(count),
                "seconds": spent,
                "of the step": spent / max(sum(seconds), 1e-9),
                "GFLOP/s": flops / divisor / 1e9,
                "GB/s": moved / divisor / 1e9,
                "of the peak": least / divisor,
            }
        )
    return sorted(rows, key=lambda row: -row["seconds"])


def print_nodes(case: Case, repeat: int = 3) -> None:
    plan = graphc.plan(network(case), optimizer=OPTIMIZERS[case.optimizer](1e-3))
    seconds = node_seconds(plan, repeat)
    peak = measured_peak()
    print(
        f"{case.label}: {sum(seconds):.3f} s in {len(seconds)} nodes; the machine's peak is "
        f"{peak.flops / 1e9:.0f} GFLOP/s and {peak.bytes / 1e9:.1f} GB/s"
    )
    print_table(by_op(plan.graph.nodes, seconds, peak))
