"""graphc models: list the networks of the zoo, their arguments, and parameter counts."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.cli.models import arguments_of, build
from graphc.cli.terminal import WIDTH, Console, say
from graphc.ir import builder
from graphc.models import MODELS

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("models", help="list the models, their arguments and defaults")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    found = {name: _describe(name) for name in MODELS}
    if options.json:
        say(json.dumps(found, default=str))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("arguments and their defaults")
    for name, model in found.items():
        arguments = (f"{key}={value}".replace(" ", "") for key, value in model["arguments"].items())
        table.add_row(name, f"{model['parameters']:,}", " ".join(arguments))
    Console(width=WIDTH).print(table)


def _describe(name: str) -> dict[str, Any]:
    """Return the first line of the model's docstring, its arguments, and its parameter count."""
    states = builder.trace({"loss": build(name, [])}).states
    return {
        "doc": (MODELS[name].__doc__ or "").splitlines()[0],
        "arguments": arguments_of(name, []),
        "parameters": sum(state.type.elements for state in states if state.trainable),
    }
