"""graphc audit: the peak, the recomputations and the faults of a partitioner of torch."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import graphc
from graphc.cli.models import called_module, function_of
from graphc.cli.terminal import say

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

FAULTY = 1
"""Exit code if the graphs compute wrong values."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "audit", help="check the graphs of torch's partitioners, their peak and recomputations"
    )
    parser.add_argument(
        "model", metavar="MODULE",
        help="file.py:function, which returns a module of torch and its arguments",
    )  # fmt: skip
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="arguments of the function"
    )
    parser.add_argument(
        "--partition", default="min-cut", metavar="NAME",
        help="min-cut, default, checkpoint, or file.py:function (default: min-cut)",
    )  # fmt: skip
    parser.add_argument(
        "--memory-budget", type=float, metavar="FRACTION",
        help="torch's activation_memory_budget, from 0 to 1",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the audit; return 1 if the graphs compute wrong values."""
    module, args, kwargs = called_module(options.model, options.settings)
    partition = options.partition
    found = graphc.torch.audit(
        module,
        args,
        function_of(partition) if ":" in partition else partition,
        activation_memory_budget=options.memory_budget,
        kwargs=kwargs,
    )
    say(json.dumps(found.json) if options.json else found)
    return 0 if found.is_correct else FAULTY
