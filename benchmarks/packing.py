"""Packing: instances in files, generated families, and the zoo under every recomputation policy.

Heights are given as parts of the bound, the most bytes live at one time; 1 is the least there is.
Every packing is checked by a sweep over time that shares no code with the packer. "peak MiB" is the
most memory that the process has taken so far.
`best fit` places buffers in the order of time, `size first` by falling size with best fit; both are
taken from the same package in the same run, size first only for up to 20,000 buffers.
Run: python benchmarks/packing.py [FOLDER ...]        folders hold CSV files for `graphc pack`
"""

from __future__ import annotations

import argparse
import bisect
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from buffer_families import (
    Columns,
    cut_evenly,
    cut_rectangle,
    first_fit_trap,
    nearly_full,
    random_lifetimes,
    training_trace,
)
from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import MODELS
from graphc.planner.pack import THOROUGH, pack
from graphc.planner.pack.csv_file import read_buffers
from graphc.planner.pack.given import Buffers
from graphc.planner.pack.in_order import place_in_order
from graphc.planner.pack.in_time import pack_in_time
from graphc.plans.memory_plan import RECOMPUTE

QUADRATIC_LIMIT = 20_000
SEEDS = 5
SIZES: dict[str, list[dict[str, Any]]] = {
    "lstm": [{}, {"seq_len": 32}],
    "mlp": [{}, {"layers": 50, "hidden": 1024, "batch": 512}],
    "resnet": [{}, {"depth": 1001}],
    "preact_resnet": [{}, {"depth": 164}],
}
"""Sizes besides the defaults."""


def families() -> Iterator[tuple[str, Columns]]:
    for seed in range(SEEDS):
        for buffers in (50, 100, 200):
            yield f"tight {buffers} #{seed}", cut_rectangle(buffers, 80, 1024, seed)
    for buffers in (100, 200, 300, 400, 500):
        yield f"full {buffers}", nearly_full(buffers, buffers // 3, 0)
    for power in (8, 10):
        yield f"trap {2**power}", first_fit_trap(power)
    # Smaller ones first, as the memory of the process only grows.
    for buffers in (1_000, 10_000, 62_000, 100_000, 1_000_000):
        yield f"trace {buffers}", training_trace(buffers // 2, 0)
        yield f"random {buffers}", random_lifetimes(buffers, 0)
        yield f"cut {buffers}", cut_evenly(buffers, buffers, 2**30, 0)
        yield f"cut {buffers}, {buffers // 10} times", cut_evenly(buffers, buffers // 10, 2**30, 0)
        # One and a half blocks a byte.
        power = (buffers * 2 // 3).bit_length() - 1
        yield f"trap {2**power}", first_fit_trap(power)


def files(folders: list[Path]) -> Iterator[tuple[str, Columns]]:
    for path in sorted(path for folder in folders for path in folder.rglob("*.csv")):
        table = read_buffers(str(path))
        if not table.pinned:
            yield path.stem, (table.lower, table.upper, table.size)


def measure(name: str, columns: Columns, effort: int) -> dict[str, Any]:
    started = time.perf_counter()
    packing = pack(*columns, effort=effort)
    seconds = time.perf_counter() - started
    check(*columns, packing.offsets)
    bound = packing.bound or 1
    buffers = Buffers.of(*columns, 1, None)
    problem, unit = buffers.problem(np.arange(len(buffers.size)))
    by_size = None
    if len(problem) <= QUADRATIC_LIMIT:
        order = np.lexsort((problem.first, -problem.size))
        offsets = np.zeros(len(order), np.int64)
        by_size = place_in_order(
            problem.first, problem.last, problem.size, order, problem.is_pinned, True, offsets
        )
    return {
        "instance": name,
        "buffers": len(problem),
        "bound": packing.bound,
        "height": packing.height / bound,
        "best fit": pack_in_time(problem)[1] * unit / bound,
        "size first": None if by_size is None else int(by_size) * unit / bound,
        "optimal": packing.is_optimal,
        "seconds": seconds,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def check(lower: Any, upper: Any, size: Any, offsets: Any) -> None:
    """Raise AssertionError where two buffers that live together overlap."""
    buffers = np.arange(len(size))
    # What dies at a time is gone before what is born then.
    times, births = np.concatenate((upper, lower)), np.repeat((False, True), len(size))
    order = np.lexsort((births, times))
    live: list[tuple[int, int]] = []
    for index, is_born in zip(np.tile(buffers, 2)[order].tolist(), births[order], strict=True):
        taken = int(offsets[index]), int(offsets[index] + size[index])
        place = bisect.bisect_left(live, taken)
        if not is_born:
            assert live.pop(place) == taken
            continue
        assert place == 0 or live[place - 1][1] <= taken[0], f"buffer {index} overlaps one below"
        assert place == len(live) or taken[1] <= live[place][0], (
            f"buffer {index} overlaps one above"
        )
        live.insert(place, taken)


def zoo(names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        for size in SIZES.get(name, [{}]):
            for policy in RECOMPUTE:
                found = graphc.plan(
                    MODELS[name](**size), optimizer=graphc.optim.SGD(), recompute=policy
                )
                rows.append(
                    {
                        "network": name,
                        "size": " ".join(f"{key}={value}" for key, value in size.items()),
                        "recompute": policy,
                        "buffers": len(found.buffers),
                        "gap": found.arena_bytes / found.live_bytes - 1,
                        "seconds": found.planning_seconds,
                    }
                )
        print_table(rows[-len(SIZES.get(name, [{}])) * len(RECOMPUTE) :])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="of CSV files")
    parser.add_argument("--networks", nargs="*", default=sorted(MODELS), help="of the zoo")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="generated ones with it in the name"
    )
    output_argument(parser, "packing.json")
    options = parser.parse_args()
    instances = [measure(*given, THOROUGH) for given in files(options.folders)]
    chosen = (given for given in families() if options.only in given[0])
    generated = [measure(*given, THOROUGH) for given in chosen]
    print_table([*instances, *generated])
    networks = zoo(options.networks)
    gaps = [row["gap"] for row in networks]
    if gaps:
        print(f"zoo: largest gap {max(gaps):.3%}, median {statistics.median(gaps):.3%}")
    content = {
        **circumstances(["graphc", "numba", "numpy"]),
        "instances": instances,
        "generated": generated,
        "zoo": networks,
    }
    write_json(options.output, content)


if __name__ == "__main__":
    main()
