"""What the benchmark scripts share: a table on the terminal, a JSON file with its circumstances."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import graphc
from graphc.runtime.profile import machine

RESULTS = Path(__file__).parent / "results"


def output_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """``--output FILE``, by default a file of that name in benchmarks/results."""
    parser.add_argument("--output", type=Path, default=RESULTS / name, help="JSON file to write")


def circumstances(packages: Sequence[str]) -> dict[str, Any]:
    """Date, machine, library versions and commit of a measurement."""
    head = ["git", "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(
            head, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in packages},
        "commit": commit,
    }


def _version(package: str) -> str | None:
    """Of graphc, the tree's that is measured, whatever is installed."""
    if package == "graphc":
        return graphc.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(*rows: tuple[str, ...]) -> str:
    """Rows of cells as Markdown, the first as the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """One line a row under the keys of the first."""
    header = list(rows[0])
    cells = [header] + [[_cell(row[key]) for key in header] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the result file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"written to {path}")
