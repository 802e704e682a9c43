"""graphc selftest: check this installation on small networks."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import graphc
from graphc import selftest
from graphc.cli import devices
from graphc.cli.terminal import say
from graphc.errors import GraphcError
from graphc.files import write_atomically

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

REPORT = "graphc-selftest.json"
FAILED = 1
"""Exit code if a check failed."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("selftest", help="check results, bits and memory on this machine")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: cpu)")
    parser.add_argument(
        "--output", default=REPORT, metavar="FILE",
        help=f"the report, to attach to a bug report (default: {REPORT})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print a line for each check and write the report; return 1 if a check failed."""
    started = time.monotonic()
    machine = devices.describe()
    found: list[selftest.Check] = []
    for check in selftest.checks(options.device):
        found.append(check)
        _write(options, machine, found, time.monotonic() - started)
        mark = "ok    " if check.passed else "FAILED"
        say(f"{mark}  {check.network:<14}{check.subject:<30}{check.found}")
    failed = _failures(found)
    say(f"{len(found) - failed} checks passed, {failed} failed; report: {options.output}")
    return FAILED if failed else 0


def _failures(found: Sequence[selftest.Check]) -> int:
    return sum(not check.passed for check in found)


def _write(
    options: argparse.Namespace,
    machine: Mapping[str, Any],
    found: Sequence[selftest.Check],
    seconds: float,
) -> None:
    """Write the report so far, so that a killed process leaves its last state."""
    report = {
        "graphc": graphc.__version__,
        "device": options.device,
        "failed": _failures(found),
        "seconds": round(seconds, 1),
        "machine": machine,
        "checks": [asdict(check) for check in found],
    }
    write_atomically(options.output, json.dumps(report, indent=1).encode(), GraphcError)
