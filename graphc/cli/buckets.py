"""graphc buckets: the sizes of a network that minimize the expected step time for given lengths."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.byte_sizes import format_bytes
from graphc.cli.arguments import add_costs, add_options, add_order, add_recipe
from graphc.cli.models import add_loss, sized, with_flags
from graphc.cli.plans import DEFAULT, cost_model, identity, plan_options
from graphc.cli.terminal import say, tell
from graphc.compiler.bucketing import Buckets, buckets, counted, interpolated, rounded, spread
from graphc.compiler.compile import plan
from graphc.compiler.families import plan_family
from graphc.compiler.options import GOALS, PlanOptions
from graphc.errors import OptionError, quoted, whole_number
from graphc.models import MODELS
from graphc.plans.family import FamilyPlan
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

POINTS = 8
"""The number of lengths at which a step is planned and timed; times between are interpolated."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "buckets", help="sizes that minimize the expected step time for given lengths"
    )
    parser.add_argument(
        "lengths", metavar="LENGTHS",
        help="a text file with a line for each step: its length; or for each length: the length "
        "and the number of steps",
    )  # fmt: skip
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="arguments of the model"
    )
    parser.add_argument(
        "--model", metavar="MODEL", required=True,
        help=f"one of {', '.join(MODELS)}, or file.py:function, or file.onnx",
    )  # fmt: skip
    parser.add_argument(
        "--argument", metavar="NAME", default="seq_len",
        help="the argument of the model that is the length (default: seq_len)",
    )  # fmt: skip
    parser.add_argument(
        "--k", type=int, default=6, metavar="K", help="maximum number of sizes (default: 6)"
    )
    parser.add_argument(
        "--multiple-of", type=int, default=1, metavar="M",
        help="round sizes up to a multiple of M (default: 1)",
    )  # fmt: skip
    add_loss(parser)
    add_options(parser, PlanOptions, ("device", "allocate", "recompute"))
    add_recipe(parser, DEFAULT, ("none",))
    add_order(parser)
    add_options(
        parser.add_argument_group("recomputation by budget, at most one"), PlanOptions, GOALS
    )
    add_costs(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run, dump=None)


def run(options: argparse.Namespace) -> None:
    """Print the sizes, and their expected time against one size and a plan per length."""
    counts = counted(read_lengths(options.lengths))
    for name in ("k", "multiple_of"):
        whole_number(f"--{name.replace('_', '-')}", getattr(options, name))
    chosen = plan_options(options)
    build = sized(options.model, with_flags(options), [options.argument])

    def seconds(length: int) -> float:
        report(f"modeling a step of length {length}")
        return step_seconds(plan(build(**{options.argument: length}), **chosen), options)

    candidates = sorted({rounded(length, options.multiple_of) for length in counts})
    points = spread(candidates, POINTS)
    cost = interpolated(points, [seconds(point) for point in points])
    found = buckets(counts, options.k, cost=cost, multiple_of=options.multiple_of)
    family = plan_family(build, {options.argument: found.sizes}, **chosen)
    if options.json:
        say(json.dumps(_described(options, counts, points, found, family), default=str))
        return
    _print(options, counts, points, found, family)


def read_lengths(path: str) -> Counter[int]:
    """Return the number of steps by length; raises `OptionError` for an invalid file."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read the lengths of {path!r}: {told}") from None
    found = Counter[int]()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        if len(words) > 2 or not all(word.isdecimal() for word in words) or int(words[0]) < 1:
            raise OptionError(
                f"line {number} of {path!r} is {quoted(line)}; give a length of at least 1, and "
                "optionally the number of steps"
            )
        found[int(words[0])] += int(words[1]) if len(words) == 2 else 1
    return found


def step_seconds(memory_plan: MemoryPlan, options: argparse.Namespace) -> float:
    """Return the modeled seconds of a step: by its calls on a GPU, else by the cost model."""
    if memory_plan.device.kind == "cuda" and options.costs is None and options.roofline is None:
        from graphc.runtime.gpu.step_model import model_step  # imports the code generator

        return model_step(memory_plan).seconds
    costs = cost_model(memory_plan, options.roofline, options.costs)
    return sum(costs.seconds(node) for node in memory_plan.graph.nodes)


def _described(
    options: argparse.Namespace,
    counts: dict[int, int],
    points: Sequence[int],
    found: Buckets,
    family: FamilyPlan,
) -> dict[str, Any]:
    settings = [*options.settings, f"{options.argument}={found.sizes[-1]}"]
    made_by = identity(argparse.Namespace(**{**vars(options), "settings": settings}))
    made_by["arguments"].pop(options.argument, None)
    return {
        **made_by,
        "steps": sum(counts.values()),
        "lengths": len(counts),
        "modeled_lengths": list(points),
        **asdict(found),
        "family": family.as_json(),
    }


def _print(
    options: argparse.Namespace,
    counts: dict[int, int],
    points: Sequence[int],
    found: Buckets,
    family: FamilyPlan,
) -> None:
    device = family.largest.device.name
    candidates = {rounded(length, options.multiple_of) for length in counts}
    between = "" if len(points) == len(candidates) else ", and interpolated between them"
    tell([
        f"{sum(counts.values()):,} steps of {len(counts):,} lengths from {min(counts):,} to "
        f"{max(counts):,}; {device} time modeled at {len(points)} lengths{between}",
        f"sizes: {options.argument}={','.join(map(str, found.sizes))}",
    ])  # fmt: skip
    arenas = sum(each.arena_bytes for each in family.plans)
    single = family.plans[-1].arena_bytes
    say(_row("", "padding", "time a step", "arena"))
    shared = format_bytes(family.arena_bytes)
    say(_row("these sizes", f"{found.padding:.1%}", _time(found.expected_cost), shared))
    say(
        _row(
            f"one size of {found.sizes[-1]:,}", f"{found.single_padding:.1%}",
            _time(found.single_cost), format_bytes(single),
        )
    )  # fmt: skip
    separate = f"{found.separate_padding:.1%}"
    say(_row("a plan per length", separate, _time(found.separate_cost), shared))
    say(f"separate programs for these sizes would take {format_bytes(arenas)}")


def _row(name: str, padding: str, seconds: str, arena: str) -> str:
    return f" {name:<22}{padding:>9}{seconds:>14}{arena:>13}".rstrip()


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
