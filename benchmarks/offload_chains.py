"""POFO and graphc on chains with a link to the host: random ones, and those of networks.

Both plan the same problem, and `graphc.planner.given.measure` gives the seconds of both. graphc has
half of `--seconds` for recomputation, the rest and POFO the time that they take. Random chains have
6 to 40 stages. During the first forward pass, the link copies 3 % to 300 % of the bytes that all
stages save. Budgets are between the lower bound and the bytes without recomputation. Networks are
collapsed to chains (network_chains.py); their times are those of the cost model. Run: python
benchmarks/offload_chains.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pofo
from chains import Chain, random_chain
from network_chains import NETWORKS, PRECISIONS, collapse, training_steps
from offload_tables import outcome
from report import circumstances, output_argument, print_table, write_json

from graphc.planner.given import HostLink, solve
from graphc.planner.given.replay import replay_steps

COUNT, SEED = 500, 2021
STAGES = (6, 40)
RATIOS = (0.03, 3.0)
"""Range of the bytes that the link copies in a forward pass, as a part of all saved bytes."""

PARTS = (0.25, 0.5, 0.75)
"""Budgets of networks, between the lower bound and the bytes without recomputation."""

CHAINS = ("ResNet-50, batch 64", "U-Net, batch 16", "GPT-2 medium, batch 8")


RATE = 25e9
"""Bytes per second of the link of networks in each direction: PCIe 4 with 16 lanes."""


def random_cases(count: int) -> Iterator[tuple[Chain, HostLink, float]]:
    """Yield chains with links and positions of the budget between its bounds."""
    rng = np.random.default_rng(SEED)
    while count:
        chain = random_chain(rng, int(rng.integers(STAGES[0], STAGES[1] + 1)))
        ratio = float(np.exp(rng.uniform(*np.log(RATIOS))))
        part = float(rng.uniform())
        problem = chain.problem()
        if problem.bound_bytes < replay_steps(problem, problem.order).peak_bytes:
            rate = ratio * sum(chain.whole) / sum(chain.forward)
            yield chain, HostLink(rate, rate), part
            count -= 1


def compare(chain: Chain, link: HostLink, part: float, seconds: float) -> dict[str, Any]:
    """Plan a chain by both. Extra times are fractions of the seconds without a budget."""
    problem = chain.problem(link)
    base = replay_steps(problem, problem.order)
    budget = int(problem.bound_bytes + part * (base.peak_bytes - problem.bound_bytes))
    started = time.perf_counter()
    other = pofo.plan(chain, link, budget)
    took = time.perf_counter() - started
    found = solve(problem, budget, seconds)
    return {
        "stages": len(chain),
        "ratio": link.to_host * sum(chain.forward) / sum(chain.whole),
        "part": part,
        "budget": budget,
        "peak_bytes": base.peak_bytes,
        "pofo": None if other is None else other.timing.seconds / base.cost - 1,
        "pofo_expected": None if other is None else other.expected_seconds / base.cost - 1,
        "graphc": found.cost / base.cost - 1,
        "bound": found.bound_cost / base.cost - 1,
        "pofo_seconds": took,
        "graphc_seconds": found.seconds,
    }


def of_network(name: str, precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare both on the chain of a network, within parts of its bytes."""
    chain, beside = collapse(training_steps(NETWORKS[name](), options.device, precision))
    rows = []
    for part in PARTS:
        row = compare(chain, HostLink(RATE, RATE), part, options.seconds)
        rows.append({"network": name, "precision": precision, **row, "beside_bytes": beside})
        print_table(rows[-1:])
    return rows


def case(chain: Chain, link: HostLink, row: dict[str, Any]) -> dict[str, Any]:
    """Return a chain on which POFO is faster as data."""
    return {
        "chain": {field.name: getattr(chain, field.name) for field in fields(chain)},
        "bytes_per_second": link.to_host,
        "budget": row["budget"],
        "extra": {name: row[name] for name in ("pofo", "graphc", "bound")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="a100", help="a device profile, for networks")
    parser.add_argument("--seconds", type=float, default=1.0, help="as for graphc remat")
    parser.add_argument("--count", type=int, default=COUNT, help="number of random chains")
    parser.add_argument("--losses", type=Path, help="JSON file for chains on which POFO is faster")
    output_argument(parser, "offload_chains.json")
    options = parser.parse_args()
    rows, losses = [], []
    cases = list(random_cases(options.count))
    # The first plan compiles functions, which takes longer than planning.
    compare(*cases[0], options.seconds)
    for found in cases:
        rows.append(compare(*found, options.seconds))
        if outcome(rows[-1]) == "POFO":
            losses.append(case(*found[:2], rows[-1]))
            print_table(rows[-1:])
        if len(rows) % 50 == 0:
            print(len(rows), statistics.multimode(map(outcome, rows)), len(losses), flush=True)
    networks = [r for p in PRECISIONS for name in CHAINS for r in of_network(name, p, options)]
    content = {
        **circumstances(["graphc", "numpy", "scipy"]),
        "device": options.device,
        "seconds": options.seconds,
        "seed": SEED,
        "bytes_per_second": RATE,
        "networks": networks,
        "random": rows,
    }
    write_json(options.output, content)
    if options.losses:
        options.losses.write_text(json.dumps(losses) + "\n")


if __name__ == "__main__":
    main()
