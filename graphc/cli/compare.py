"""graphc compare: one row for each allocation strategy."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from graphc.cli.arguments import add_recipe
from graphc.cli.models import add_model
from graphc.cli.plan import DEFAULT, make_plan
from graphc.ir.plan import ALLOCATE
from graphc.ir.types import format_bytes

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="one row for each allocation strategy")
    add_model(parser)
    add_recipe(parser, DEFAULT, ("none",))
    parser.add_argument("--json", action="store_true", help="a list of plan objects")
    parser.set_defaults(run=run, recompute="none", allocate="packed", dump=None, steps=10_000)


def run(options: argparse.Namespace) -> None:
    """Plan the model under every strategy."""
    plans = [make_plan(options, strategy) for strategy in ALLOCATE]
    if options.json:
        print(json.dumps([found.summary(options.model) for found in plans]))
        return
    table = Table("allocate", "feature maps", "arena", "most live", "gap", "seconds", box=None)
    for found in plans:
        gap = found.arena_bytes / found.live_bytes - 1
        table.add_row(
            found.allocate,
            format_bytes(found.feature_map_bytes),
            format_bytes(found.arena_bytes),
            format_bytes(found.live_bytes),
            f"{gap:.1%}",
            f"{found.planning_seconds:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)
