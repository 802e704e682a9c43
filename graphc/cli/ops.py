"""graphc ops: list all ops, and the values that their gradients read."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.cli.terminal import Console, say
from graphc.ir.op import REGISTRY, Op

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("ops", help="list the ops and what their gradients read")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table of ops."""
    if options.json:
        say(json.dumps({name: _describe(op) for name, op in sorted(REGISTRY.items())}))
        return
    table = Table("op", "inputs", "outputs", "gradient reads", "may overwrite", box=None)
    for name, op in sorted(REGISTRY.items()):
        rules = _describe(op)
        reads = "; ".join(f"{i}: {', '.join(r) or 'nothing'}" for i, r in rules["gradient"].items())
        over = "; ".join(f"{o} over {' or '.join(i)}" for o, i in rules["overwrite"].items())
        table.add_row(name, ", ".join(op.inputs), ", ".join(op.outputs), reads or "-", over)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _describe(op: Op) -> dict[str, Any]:
    must = {output: (state,) for output, state in op.must_overwrite.items()}
    return {
        "doc": (type(op).__doc__ or "").splitlines()[0],
        "inputs": op.inputs,
        "outputs": op.outputs,
        "gradient": {name: rule.reads for name, rule in op.gradients.items()},
        "overwrite": {**op.may_overwrite, **must},
        "views": op.views,
    }
