"""graphc profile: measure a step's ops and the link to host memory here, for use in planning."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rich.table import Table

from graphc.cli.arguments import add_options, add_recipe, check_writable
from graphc.cli.models import add_model
from graphc.cli.plans import DEFAULT, plan_from_arguments
from graphc.cli.terminal import Console, say
from graphc.compiler.options import PlanOptions
from graphc.devices.device import Device
from graphc.errors import whole_number
from graphc.planner.host_link import HostLink
from graphc.plans.costs import MeasuredCosts
from graphc.runtime.profile import REPEAT, profile

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("profile", help="measure op times; --costs plans with them")
    add_model(parser)
    add_options(parser, PlanOptions, ("device",))
    add_recipe(parser, DEFAULT, ("none",))
    parser.add_argument(
        "--repeat", type=int, default=REPEAT, metavar="N",
        help=f"steps measured; the best time of a node counts (default: {REPEAT})",
    )  # fmt: skip
    parser.add_argument(
        "--output", default="costs.json", metavar="FILE",
        help="file for the times (default: costs.json)",
    )  # fmt: skip
    parser.set_defaults(run=run, dump=None)


def run(options: argparse.Namespace) -> None:
    """Measure the ops, write the file, and print a table by op."""
    repeat = whole_number("--repeat", options.repeat)
    check_writable(options.output)
    memory_plan = plan_from_arguments(options)
    costs = profile(memory_plan, repeat)
    costs.write(options.output)
    if costs.measured:
        _show(costs, memory_plan.device)
    if costs.host_link is not None:
        say(f"link to host memory: {_described(costs.host_link)}")
    say(f"{len(costs.measured)} kernels written to {options.output}")


def _described(link: HostLink) -> str:
    out, back = (f"{rate / 1e9:.3g} GB/s" for rate in (link.to_host, link.to_device))
    ways = "at the same time" if link.both_ways else "one at a time"
    return f"{out} out and {back} back, {ways}; {link.latency * 1e6:.3g} µs per copy"


def _show(costs: MeasuredCosts, device: Device) -> None:
    totals: dict[str, tuple[int, float, float]] = {}
    for entry in costs.measured:
        count, measured, roofline = totals.get(entry.op, (0, 0.0, 0.0))
        totals[entry.op] = (
            count + entry.count,
            measured + entry.count * entry.seconds,
            roofline + entry.count * device.seconds(entry.flops, entry.bytes),
        )
    step = sum(measured for _, measured, _ in totals.values())
    columns = ("calls", "total ms", "share", f"measured / {device.name} roofline")
    table = Table("op", box=None)
    for column in columns:
        table.add_column(column, justify="right")
    for op, (count, measured, roofline) in sorted(totals.items(), key=lambda t: (-t[1][1], t[0])):
        share, ratio = measured / (step or 1.0), measured / (roofline or 1.0)
        table.add_row(op, str(count), f"{measured * 1e3:.3f}", f"{share:.1%}", f"{ratio:.2f}")
    calls = sum(count for count, _, _ in totals.values())
    table.add_row("step", str(calls), f"{step * 1e3:.3f}")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
