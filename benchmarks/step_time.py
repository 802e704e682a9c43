"""Seconds of a training step: graphc, torch eager, torch.compile and JAX, measured in one run.

All run on all cores, with the same optimizer, batch and dtype. A row's frameworks run alone first,
each in a process of its own with empty caches: that gives the seconds of compiling and of graphc's
first step, and the most bytes resident. Then all run in one process, in alternating blocks of two
steps, the second of which is timed, so that none has the quieter machine and each follows itself;
a row has the medians.

Rows that the file has from the same commit, machine and versions are kept.
Run: python benchmarks/step_time.py [--rows PATTERN] [--neighbour] | --nodes ROW
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from node_times import print_nodes
from report import circumstances, output_argument, print_table, write_json
from step_cases import CASES, Case
from step_frameworks import MODULES, Measured, missing

Row = dict[str, Any]
FEWEST_STEPS, MOST_STEPS = 5, 9
ROW_SECONDS = 30.0
"""About what the steps of a row may take, which decides their number."""

SPIN = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
while True:
    pass
"""


def run(case: Case, frameworks: Sequence[str], steps: int, caches: Path) -> Measured:
    """What a process of its own finds; whatever it compiles is kept in `caches`."""
    script = Path(__file__).with_name("step_frameworks.py")
    command = [sys.executable, script, json.dumps(asdict(case)), *frameworks, f"--steps={steps}"]
    kept = {
        "XDG_CACHE_HOME": caches,
        "TORCHINDUCTOR_CACHE_DIR": caches / "inductor",
        "JAX_COMPILATION_CACHE_DIR": caches / "jax",
    }
    found = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False,
        env=os.environ | {name: str(folder) for name, folder in kept.items()},
    )  # fmt: skip
    if found.returncode:
        return Measured(problems=dict.fromkeys(frameworks, f"exit status {found.returncode}"))
    return Measured(**json.loads(found.stdout.splitlines()[-1]))


def steps_within(seconds: float, alone: dict[str, Measured]) -> int:
    """How many steps of each take about so long, between the fewest and the most."""
    one_of_each = sum(sum(found.seconds.values()) for found in alone.values())
    return min(MOST_STEPS, max(FEWEST_STEPS, int(seconds / max(2 * one_of_each, 1e-9))))


def measured_row(case: Case, frameworks: Sequence[str], steps: int | None) -> Row:
    """A case's row."""
    with tempfile.TemporaryDirectory() as folder:
        caches = Path(folder)
        alone = {name: run(case, [name], 0, caches) for name in frameworks}
        running = [name for name, found in alone.items() if found.seconds]
        count = steps or steps_within(ROW_SECONDS, alone)
        together = run(case, running, count, caches)
    return row_of(case, count, alone, together)


def row_of(case: Case, steps: int, alone: dict[str, Measured], together: Measured) -> Row:
    """The figures of a case; those of a framework that could not be run are None."""
    seconds = {name: together.seconds.get(name) for name in MODULES}
    row: Row = {"network": case.label, "steps": steps}
    row |= {f"{name}_seconds": found for name, found in seconds.items()}
    row["ratio"] = _ratio(seconds["graphc"], seconds["torch"])
    row["ratio_compiled"] = _ratio(seconds["graphc"], seconds["compiled"])
    row["ratio_jax"] = _ratio(seconds["graphc"], seconds["jax"])
    own = {name: alone.get(name, Measured()) for name in MODULES}
    row["arena_bytes"] = own["graphc"].arena_bytes
    row |= {f"{name}_resident_bytes": own[name].resident_bytes for name in MODULES}
    row |= {
        f"{name}_compile_seconds": own[name].compile_seconds.get(name)
        for name in MODULES
        if name != "torch"
    }
    row["graphc_first_step_seconds"] = own["graphc"].first_step_seconds.get("graphc")
    problems = together.problems.copy()
    for found in own.values():
        problems |= found.problems
    return {**row, "problems": problems}


def _ratio(seconds: float | None, of: float | None) -> float | None:
    return None if seconds is None or of is None else seconds / of


@contextlib.contextmanager
def busy_core() -> Iterator[subprocess.Popen[bytes]]:
    """One core is kept busy by another process."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kept_rows(path: Path, now: Row) -> dict[str, Row]:
    """The rows of a file by network, where it is from the same commit, machine and versions."""
    before = json.loads(path.read_text()) if path.exists() else {}
    same = all(before.get(key) == now[key] for key in ("machine", "python", "versions", "commit"))
    return {row["network"]: row for row in before["rows"]} if same else {}


def ordered(rows: dict[str, Row]) -> list[Row]:
    """In the order of the cases, those with a busy core last."""
    labels = [case.label for case in CASES]
    return [rows[label] for label in [*labels, *map(with_neighbour, labels)] if label in rows]


def with_neighbour(label: str) -> str:
    return f"{label}, one core busy"


def line(row: Row) -> Row:
    """A row on the terminal."""
    shown: Row = {"network": row["network"]}
    shown |= {f"{name} s": row[f"{name}_seconds"] for name in MODULES}
    shown |= {"/ torch": row["ratio"], "/ compiled": row["ratio_compiled"]}
    shown["arena MiB"] = _mebibytes(row["arena_bytes"])
    shown |= {f"{name} MiB": _mebibytes(row[f"{name}_resident_bytes"]) for name in MODULES}
    shown |= {
        f"{name} compiles s": row[f"{name}_compile_seconds"] for name in MODULES if name != "torch"
    }
    return {**shown, "first step s": row["graphc_first_step_seconds"]}


def _mebibytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**20:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rows_help = "only the networks in whose names this regular expression is found"
    parser.add_argument("--rows", type=re.compile, default="", metavar="PATTERN", help=rows_help)
    parser.add_argument("--steps", type=int, help="timed steps of each, by default as many as fit")
    parser.add_argument("--neighbour", action="store_true", help="while one core is kept busy")
    parser.add_argument("--nodes", metavar="ROW", help="print where a step of graphc's goes")
    output_argument(parser, "step_time.json")
    options = parser.parse_args()
    if options.nodes is not None:
        for case in CASES:
            if options.nodes in case.label:
                print_nodes(case)
        return
    with busy_core() if options.neighbour else contextlib.nullcontext():
        measure_rows(options)


def measure_rows(options: argparse.Namespace) -> None:
    """Measure the chosen rows, and write the file after each."""
    absent = {name: reason for name in MODULES if (reason := missing(name))}
    for reason in absent.values():
        print(reason)
    packages = ["graphc", "numpy", "scipy", *(n for n in ("torch", "jax") if n not in absent)]
    heading = {**circumstances(packages), "missing": absent}
    rows = kept_rows(options.output, heading)
    for case in CASES:
        if not options.rows.search(case.label):
            continue
        row = measured_row(case, [name for name in MODULES if name not in absent], options.steps)
        if options.neighbour:
            row["network"] = with_neighbour(row["network"])
        rows[row["network"]] = row
        print_table([line(row)])
        write_json(options.output, {**heading, "rows": ordered(rows)})
    print_table([line(row) for row in ordered(rows)])


if __name__ == "__main__":
    main()
