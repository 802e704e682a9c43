"""graphc remat: a recomputation plan for a problem in a file."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from graphc.byte_sizes import exact_bytes, parse_bytes
from graphc.cli.terminal import say
from graphc.errors import BudgetError, ProblemError, finite_number
from graphc.planner.given import GivenProblem, LinkedSolution, read_problem, solve
from graphc.planner.given.solve import SECONDS

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("remat", help="plan recomputation for a graph given as JSON")
    parser.add_argument(
        "file", metavar="FILE", help="the problem; docs/recomputation.md has the format"
    )
    parser.add_argument(
        "--budget", metavar="BYTES", help="replace the file's budget, for example by 7GiB"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"time for improving the first plan, half of it with a link (default: {SECONDS:g})",
    )
    parser.add_argument(
        "--host-budget",
        metavar="BYTES",
        help="replace the `host_bytes` of the file's link; 0 plans without copies to the host",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Solve the problem and print the plan."""
    finite_number("--seconds", options.seconds)
    budget = None if options.budget is None else parse_bytes("--budget", options.budget)
    problem = _with_host_budget(read_problem(options.file), options)
    if budget is None and problem.budget is None:
        raise ProblemError(f"{options.file!r} has no budget; pass --budget")
    try:
        found = solve(problem, budget, options.seconds)
    except BudgetError as error:
        error.args = (f"problem {options.file!r}: {error}",)
        raise
    if options.json:
        say(json.dumps(asdict(found)))
        return
    once = sum(problem.cost[node] for node in problem.order)
    say(f"peak       {exact_bytes(found.peak_bytes)}")
    say(f"cost       {_above(found.cost, once)} computing each node once")
    if isinstance(found, LinkedSolution):
        _say_copies(found, once)
    say(f"proven     at least {_above(found.bound_cost, once)}")
    say(f"runs       {len(found.sequence)}, of {len(problem)} nodes")
    say(f"seconds    {found.seconds:.2f}")
    if isinstance(found, LinkedSolution):
        say("events    ", ", ".join(found.events))
    else:
        say("sequence  ", *found.sequence)


def _say_copies(found: LinkedSolution, once: float) -> None:
    alone = found.recompute_alone
    say(f"no copies  {'no plan found' if alone is None else _above(alone, once)}")
    say(f"stalls     {found.stalls:g} of the cost")
    say(f"to host    {exact_bytes(found.bytes_to_host)}")
    say(f"to device  {exact_bytes(found.bytes_to_device)}")
    say(f"host peak  {exact_bytes(found.host_peak_bytes)}")


def _above(cost: float, once: float) -> str:
    return f"{cost:g}, {(cost - once) / (once or 1):.2%} above"


def _with_host_budget(problem: GivenProblem, options: argparse.Namespace) -> GivenProblem:
    """Return the problem with the host bytes of ``--host-budget``; without a link if they are 0."""
    if options.host_budget is None:
        return problem
    host_bytes = parse_bytes("--host-budget", options.host_budget)
    if problem.link is None:
        raise ProblemError(
            f"{options.file!r} has no link to the host; add `link` to the file, or omit "
            "--host-budget"
        )
    return replace(
        problem, link=replace(problem.link, host_bytes=host_bytes) if host_bytes else None
    )
