"""graphc compare: one row for each allocation strategy and each recomputation policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.cli.arguments import add_costs, add_options, add_order, add_recipe, check_writable
from graphc.cli.fits import fit_line, memory_object
from graphc.cli.models import add_model
from graphc.cli.plans import DEFAULT, PICTURE, check_suffix, plan_from_arguments
from graphc.cli.terminal import Console, say
from graphc.errors import OptionError
from graphc.files import write_atomically
from graphc.ir.types import format_bytes
from graphc.options import PlanOptions
from graphc.plans.memory_plan import ALLOCATE, MemoryPlan

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="one row for each strategy and policy")
    add_model(parser)
    add_recipe(parser, DEFAULT, ("none",))
    add_costs(parser)
    add_options(parser, PlanOptions, ("device",))
    add_order(parser)
    parser.add_argument("--json", action="store_true", help="a list of plan objects")
    parser.add_argument(
        "-o", "--output", metavar="FILE.png", help="bars by strategy, split by kind (matplotlib)"
    )
    parser.set_defaults(run=run, dump=None, steps=10_000)


POLICIES: tuple[dict[str, Any], ...] = (
    *({"recompute": "none", "allocate": allocate} for allocate in ALLOCATE),
    {"recompute": "cheap"},
    {"recompute": "sublinear"},
    {"recompute": "recursive"},
    {"max_extra_flops": 0.33},
)
"""The paper's Fig. 5 and 6: allocation without recomputation, the paper's policies with offsets in
one arena, and the fewest bytes within about one more forward pass."""


def run(options: argparse.Namespace) -> None:
    """Plan the model under every strategy without recomputation, then under every policy."""
    if options.output is not None:
        check_writable(options.output)
        check_suffix(options.output, PICTURE)
    trains = options.optimizer != "none"
    choices = POLICIES if trains else POLICIES[: len(ALLOCATE)]
    plans = [plan_from_arguments(options, **choice) for choice in choices]
    if options.output is not None:
        _draw(options, plans)
    if options.json:
        described = [{**found.summary(options.model), **memory_object(found)} for found in plans]
        say(json.dumps(described))
        return
    named = {f"{found.recompute}, {found.allocate}": found for found in plans}
    say(fit_line(named, options))
    columns = ("recompute", "allocate", "feature maps", "arena", "gap", "extra flops", "seconds")
    table = Table(*columns, box=None)
    for found in plans:
        gap = found.arena_bytes / found.live_bytes - 1
        table.add_row(
            found.recompute,
            found.allocate,
            format_bytes(found.feature_map_bytes),
            format_bytes(found.arena_bytes),
            f"{gap:.1%}",
            f"{found.recomputation.extra_flops_fraction:.1%}",
            f"{found.planning_seconds:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def _draw(options: argparse.Namespace, plans: Sequence[MemoryPlan]) -> None:
    from graphc.view.picture import compare_picture  # needs matplotlib, an extra

    # The first plans differ in how they place values, the others in what they compute again.
    bars = [
        (found.allocate if row < len(ALLOCATE) else found.recompute, found)
        for row, found in enumerate(plans)
    ]
    picture = compare_picture(bars, f"{options.model}: arena by strategy")
    write_atomically(options.output, picture, OptionError)
