"""graphc batch: the largest batch that fits a device, with and without recomputation."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from graphc.byte_sizes import format_bytes, parse_bytes
from graphc.cli.advice import as_budget, place
from graphc.cli.arguments import add_costs, add_options, add_order, add_recipe, parse_settings
from graphc.cli.models import add_model, build, find_model
from graphc.cli.plans import DEFAULT, identity, plan_options
from graphc.cli.terminal import INFEASIBLE, say
from graphc.compiler.batches import LargestBatch, largest_batch
from graphc.compiler.compile import device_of
from graphc.compiler.options import PlanOptions
from graphc.errors import OptionError
from graphc.ir.graph import Value
from graphc.runtime.memory import memory_of

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

THIRD = 0.33
"""The flops of one more forward pass, as a fraction of those of a step."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("batch", help="find the largest batch that fits a device")
    add_model(parser)
    add_options(parser, PlanOptions, ("device", "allocate"))
    parser.add_argument("--budget", metavar="B", help="bytes of the arena (default: the device's)")
    add_recipe(parser, DEFAULT, ("none",))
    add_costs(parser)
    add_order(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run, dump=None)


def run(options: argparse.Namespace) -> int:
    """Find and print the largest batch for each kind of plan; return the exit code."""
    make, chosen = _batched(options), plan_options(options)
    name, limit = _capacity(options)
    chosen["budget"] = None
    kinds = _kinds(options, limit)
    if not options.json:
        say(f"{name}: {limit} for an arena")
        say(_row("options", "largest batch", "arena", "extra time"))
    found: list[LargestBatch | None] = []
    for flags, asked in kinds:  # each kind recomputes more than the previous one, so more fits
        known = [each for each in found if each is not None]
        start = max(known, key=attrgetter("batch"), default=1)
        found.append(largest_batch(make, limit, start=start, **{**chosen, **asked}))
        if not options.json:
            say(_row(flags, *_cells(found[-1])))
            sys.stdout.flush()  # the next row may take much longer
    if options.json:
        say(json.dumps(_described(options, name, limit, kinds, found)))
    return 0 if any(found) else INFEASIBLE


def _row(flags: str, batch: str, arena: str, extra: str) -> str:
    """Return a row of the table: the kind of plan, its batch, its arena and its extra time."""
    return f" {flags:<23}{batch:>15}{arena:>12}{extra:>12}".rstrip()


def _batched(options: argparse.Namespace) -> Callable[[int], Value]:
    """Return a function from the batch size to the loss of the model."""
    settings = parse_settings(options.settings)
    if "batch" in settings:
        raise OptionError("graphc batch searches for the batch; leave out batch=...")
    function = find_model(options.model, {**settings, "batch": 1})
    parameters = inspect.signature(function).parameters.values()
    if not any(p.name == "batch" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise OptionError(
            f"{options.model} has no argument `batch` for the search to change; add it to the "
            "function"
        )
    return lambda batch: build(options.model, [*options.settings, f"batch={batch}"])


def _capacity(options: argparse.Namespace) -> tuple[str, str]:
    """Return the name of the memory, and its usable bytes as a value of `--budget`."""
    if options.budget is not None:
        parse_bytes("--budget", options.budget)
        return "the budget", options.budget
    device = device_of(options.device, options.roofline)
    memory = memory_of(device)
    if memory is None:
        raise OptionError(f"the memory of {device.name} is unknown; pass it as --budget")
    return place(memory), as_budget(memory.usable_bytes)


def _kinds(options: argparse.Namespace, limit: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the kinds of plans to try: their command-line flags, and keywords of `graphc.plan`."""
    plain = ("no recomputation", {"recompute": "none"})
    if options.optimizer == "none":
        return [plain]
    return [
        plain,
        (f"--max-extra-flops {THIRD}", {"max_extra_flops": THIRD}),
        (f"--budget {limit}", {"recompute": "optimal"}),
    ]


def _cells(largest: LargestBatch | None) -> tuple[str, str, str]:
    if largest is None:
        return "none fits", "", ""
    extra = largest.plan.recomputation.extra_time_fraction
    return f"{largest.batch:,}", format_bytes(largest.plan.arena_bytes), f"{extra:+.1%}"


def _described(
    options: argparse.Namespace,
    name: str,
    limit: str,
    kinds: list[tuple[str, dict[str, Any]]],
    found: list[LargestBatch | None],
) -> dict[str, Any]:
    rows = [
        {
            "options": flags,
            "batch": largest and largest.batch,
            "arena_bytes": largest and largest.plan.arena_bytes,
            "extra_time_fraction": largest and largest.plan.recomputation.extra_time_fraction,
        }
        for (flags, _), largest in zip(kinds, found, strict=True)
    ]
    settings = [*options.settings, "batch=1"]  # some models have no default batch
    made_by = identity(argparse.Namespace(**{**vars(options), "settings": settings}))
    made_by["arguments"].pop("batch", None)
    return {
        **made_by,
        "device": name,
        "usable_bytes": parse_bytes("memory", limit),
        "batches": rows,
    }
