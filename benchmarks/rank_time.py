"""Seconds of a step on two ranks with one core each: graphc over MPI, torch's DDP over gloo.

Each rank of both frameworks has a batch of its own, one thread, and a core that it is bound to. The
frameworks take turns, three times each, in processes of their own; a row has the median step of
all, and the ratio. `alone` is one rank with one core and no exchange.

Run: python benchmarks/rank_time.py [--rows PATTERN]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from report import circumstances, output_argument, print_table, write_json
from step_cases import Case

RANKS = 2
TURNS = 3
SECONDS = 3.0
"""About what a turn's steps may take."""

CASES = (
    Case(
        "mlp 10 x 512, batch 128, sgd", "mlp", "sgd",
        {"layers": 10, "hidden": 512, "inputs": 784, "classes": 10, "batch": 128},
    ),
    Case(
        "preact_resnet 29, batch 16, sgd", "preact_resnet", "sgd",
        {"depth": 29, "batch": 16, "image": 32, "classes": 10},
    ),
    Case(
        "lstm 2 x 256, T=16, batch 32, sgd", "lstm", "sgd",
        {"seq_len": 16, "batch": 32, "layers": 2, "hidden": 256, "inputs": 50, "classes": 1000},
    ),
    Case(
        "gpt2 4 x 128, T=128, batch 8, adam", "gpt2", "adam",
        {
            "layers": 4, "width": 128, "heads": 4, "seq_len": 128, "batch": 8, "vocab": 256,
            "positions": 128, "drop": 0,
        },
    ),
)  # fmt: skip
SCRIPT = Path(__file__).with_name("rank_frameworks.py")
Found = dict[str, Any]


def run(case: Case, framework: str, ranks: int, steps: int, shard: str = "none") -> Found:
    """What rank 0 of so many found."""
    arguments = [
        str(SCRIPT), json.dumps(asdict(case)), framework, f"--ranks={ranks}", f"--steps={steps}",
        f"--shard={shard}",
    ]  # fmt: skip
    starting = _under_mpi if framework == "graphc" else _with_variables
    return json.loads(starting(arguments, ranks).splitlines()[-1])


def _under_mpi(arguments: Sequence[str], ranks: int) -> str:
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    command = [beside or "mpiexec", "-n", str(ranks), sys.executable, "-c", BOUND, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _with_variables(arguments: Sequence[str], ranks: int) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BOUND, *arguments], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **told, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    told_by_all = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank of torch has failed")
    return told_by_all[0]


BOUND = """
import os, runpy, sys
rank = int(os.environ.get("RANK") or os.environ.get("PMI_RANK") or 0)
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cores[rank % len(cores)]})
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A rank on a core of its own, for graphc and for torch alike."""


def row_of(case: Case) -> Mapping[str, Any]:
    """All turns of a case."""
    once = run(case, "graphc", 1, 3)
    steps = max(5, min(200, int(SECONDS / statistics.median(once["seconds"]))))
    seconds: dict[str, list[float]] = {"graphc": [], "sharded": [], "torch": [], "alone": []}
    for _ in range(TURNS):
        graphc = run(case, "graphc", RANKS, steps)
        seconds["graphc"] += graphc["seconds"]
        seconds["torch"] += run(case, "torch", RANKS, steps)["seconds"]
        seconds["sharded"] += run(case, "graphc", RANKS, steps, "states")["seconds"]
        seconds["alone"] += run(case, "graphc", 1, steps)["seconds"]
    medians = {f"{name}_seconds": statistics.median(all_) for name, all_ in seconds.items()}
    return {
        "network": case.label, "ranks": RANKS, "steps": steps * TURNS, **medians,
        "ratio": medians["graphc_seconds"] / medians["torch_seconds"],
        "ratio_sharded": medians["sharded_seconds"] / medians["torch_seconds"],
        "arena_bytes": graphc["arena_bytes"], "kept_bytes": graphc["kept_bytes"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    output_argument(parser, "rank_time.json")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="rows in which it is found")
    options = parser.parse_args()
    rows = [row_of(case) for case in CASES if re.search(options.rows, case.label)]
    print_table([dict(row) for row in rows])
    packages = ("graphc", "numpy", "torch", "mpi4py")
    write_json(options.output, {**circumstances(packages), "rows": rows})


if __name__ == "__main__":
    main()
