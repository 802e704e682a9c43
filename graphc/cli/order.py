"""graphc order: a low-peak order of a graph in a file."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from graphc.byte_sizes import exact_bytes
from graphc.cli.terminal import say
from graphc.planner.given import read_problem
from graphc.planner.order import Precedence, least_order

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("order", help="order a graph given as JSON for a low peak")
    parser.add_argument(
        "file", metavar="FILE", help="the graph; docs/recomputation.md has the format"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Order the nodes and print the peak before and after."""
    problem = read_problem(options.file)
    steps = Precedence(problem, problem.arcs, problem.fixed_bytes)
    order = least_order(steps)
    given, found = (max(steps.profile(each)) for each in (range(len(steps)), order))
    ids = [problem.ids[step] for step in order]
    if options.json:
        say(json.dumps({"order": ids, "peak_bytes": found, "given_peak_bytes": given}))
        return
    say(f"peak       {exact_bytes(found)}")
    say(f"as given   {exact_bytes(given)}")
    say("order     ", *ids)
