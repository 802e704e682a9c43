"""graphc compare: one row for each allocation strategy and each recomputation policy."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from graphc.cli.arguments import add_costs, add_device, add_order, add_recipe
from graphc.cli.models import add_model
from graphc.cli.plan import DEFAULT, PLANNED_FOR, make_plan
from graphc.ir.plan import ALLOCATE
from graphc.ir.types import format_bytes

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="one row for each strategy and policy")
    add_model(parser)
    add_recipe(parser, DEFAULT, ("none",))
    add_costs(parser)
    add_device(parser, PLANNED_FOR)
    add_order(parser)
    parser.add_argument("--json", action="store_true", help="a list of plan objects")
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
    trains = options.optimizer != "none"
    choices = POLICIES if trains else POLICIES[: len(ALLOCATE)]
    plans = [make_plan(options, **choice) for choice in choices]
    if options.json:
        print(json.dumps([found.summary(options.model) for found in plans]))
        return
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
