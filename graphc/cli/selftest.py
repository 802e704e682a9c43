"""graphc selftest: check this installation on small networks."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

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
"""The exit code after a check that failed."""


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
    """Print a line for each check and write the report; returns 1 if a check failed."""
    started = time.monotonic()
    found = []
    for check in selftest.checks(options.device):
        found.append(check)
        mark = "ok    " if check.passed else "FAILED"
        say(f"{mark}  {check.network:<14}{check.subject:<30}{check.found}")
    failed = sum(not check.passed for check in found)
    report = {
        "graphc": graphc.__version__,
        "device": options.device,
        "failed": failed,
        "seconds": round(time.monotonic() - started, 1),
        "machine": devices.describe(),
        "checks": [asdict(check) for check in found],
    }
    write_atomically(options.output, json.dumps(report, indent=1).encode(), GraphcError)
    say(f"{len(found) - failed} checks passed, {failed} failed; report: {options.output}")
    return FAILED if failed else 0
