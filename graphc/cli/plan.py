"""graphc plan: print the memory plan of a model, without running it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.byte_sizes import format_bytes
from graphc.cli.advice import MOST, Alternatives, cure_line, fits_line
from graphc.cli.arguments import (
    add_options,
    add_recipe,
    add_steps,
    add_strategy,
    check_writable,
    parse_settings,
)
from graphc.cli.models import add_model, build, sized
from graphc.cli.parser import Parser
from graphc.cli.plans import (
    DEFAULT,
    PICTURE,
    SUFFIX,
    check_alone,
    check_suffix,
    described,
    identity,
    plan_from_arguments,
    plan_options,
    written,
)
from graphc.cli.terminal import INFEASIBLE, WIDTH, Console, say, tell
from graphc.compiler.compile import FrontierPoint, frontier
from graphc.compiler.families import plan_family
from graphc.compiler.options import HostOptions, PlanOptions, RecomputeOptions
from graphc.errors import OptionError
from graphc.files import write_atomically
from graphc.keywords import declared
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.plan_file import load_plan, save_plan
from graphc.plans.printout import format_plan
from graphc.runtime.memory import memory_of

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

MARKED = ("none", "cheap", "sublinear", "recursive")
"""Policies whose plans are marked in the chart of the trade-off curve."""

LONGEST = 10
"""Maximum number of ops that are listed for a modeled step."""

SHOWING = ("model", "settings", "output", "json", "text", "run")
"""Options that determine what is printed or written, and do not change the plan."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("plan", help="print the memory plan of a model")
    add_model(parser, "FILE.json, a plan written by --output")
    add_strategy(parser)
    add_options(parser, PlanOptions, ("device",))
    add_recipe(parser, DEFAULT, ("none",))
    add_steps(parser)
    parser.add_argument(
        "--frontier", action="store_true", help="plans for all budgets: bytes against extra time"
    )
    parser.add_argument(
        "--sizes", metavar="NAME=A,B,...", action="append", default=[],
        help="plans of one family with a common arena, a row for each size, such as "
        "--sizes seq_len=128,256,512",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="write the plan as JSON, to run or print it later; with --frontier FILE.png, a chart",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--text", action="store_true", help="also list every node")
    parser.set_defaults(run=partial(run, parser))


def run(parser: Parser, options: argparse.Namespace) -> int:
    """Print the plan, or the trade-off curve; return the exit code."""
    _check_shown(options)
    if options.output is not None:
        check_writable(options.output)
        check_suffix(options.output, PICTURE if options.frontier else SUFFIX)
    is_file = options.model.endswith(SUFFIX)
    if is_file:
        check_alone(parser, options, SHOWING)
        memory_plan = load_plan(options.model)
    elif options.sizes:
        _show_family(options)
        return 0
    elif options.frontier:
        _show_frontier(options)
        written(options)
        return 0
    else:
        memory_plan = plan_from_arguments(options)
    if options.output:
        save_plan(memory_plan, options.output)
    if options.json:
        made_by = None if is_file else options
        found = {**described(memory_plan, made_by, options.model), **step_model(memory_plan)}
        say(json.dumps(found, default=str))
        written(options)
        return _code(memory_plan)
    say(fits_line(memory_plan))
    say(format_plan(memory_plan, nodes=options.text), end="")
    _show_step_model(memory_plan)
    if not is_file:
        try:
            _show_lowering(options, memory_plan)
        except KeyboardInterrupt:
            tell(["", "Interrupted while looking for plans that need less; the plan is complete."])
    written(options)
    return _code(memory_plan)


def _code(memory_plan: MemoryPlan) -> int:
    """Return the exit code: `INFEASIBLE` for a plan that does not fit its GPU."""
    memory = memory_of(memory_plan.device)
    fits = memory is None or memory.spare_bytes(memory_plan.arena_bytes) >= 0
    return 0 if fits or memory_plan.device.kind == "cpu" else INFEASIBLE


def _check_shown(options: argparse.Namespace) -> None:
    """Raise `OptionError` if several output formats are requested."""
    shown = [f"--{name}" for name in ("frontier", "json", "text") if getattr(options, name)]
    if options.text and len(shown) > 1:
        raise OptionError(f"give only one of {' and '.join(shown)}")


def step_model(memory_plan: MemoryPlan) -> dict[str, Any]:
    """Return models of a step of a GPU plan, with and without cuDNN; empty for other devices."""
    if memory_plan.device.kind != "cuda":
        return {}
    from graphc.runtime.gpu.lints import findings  # both import the code generator
    from graphc.runtime.gpu.step_model import model_step

    models = {"cudnn": model_step(memory_plan), "without": model_step(memory_plan, False)}
    found = {name: model.as_json() for name, model in models.items()}
    lints = [asdict(finding) for finding in findings(memory_plan)]
    return {"modelled_step": {**found, "findings": lints}}


def _show_step_model(memory_plan: MemoryPlan) -> None:
    """Print the modeled time of a step on a GPU, by kind and by op."""
    for found in step_model(memory_plan).values():
        chosen, without = found["cudnn"], found["without"]
        others = ""
        if without["seconds"] != chosen["seconds"]:
            others = f", without cuDNN {_milliseconds(without['seconds'])}"
        head = f"Modelled step on the {memory_plan.device.name}, in {chosen['calls']:,} calls:"
        kinds = chosen["seconds_by_kind"].items()
        split = (f"{kind} {_milliseconds(seconds)}" for kind, seconds in kinds if seconds)
        tell(["", f"{head} {_milliseconds(chosen['seconds'])}{others}"], below="  ")
        say(f"  {', '.join(split)}")
        for each in chosen["by_op"][:LONGEST]:
            say(f"  {_milliseconds(each['seconds']):>9}  {each['op']}, {each['nodes']} nodes")
        tell(_slow(found["findings"]), below="  ")


def _slow(findings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a line for each kind of slow op: the lint rule, the op, and the first finding."""
    first: dict[tuple[str, str], Mapping[str, str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        key = finding["rule"], finding["op"]
        first.setdefault(key, finding)
        counts[key] += 1
    return [
        f"  slow: {finding['rule']} of {f'{counts[key]} {key[1]}' if key[1] else 'the step'}: "
        f"{finding['what']}"
        for key, finding in first.items()
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _show_lowering(options: argparse.Namespace, memory_plan: MemoryPlan) -> None:
    """Print the budget that fits, then the changes that lower the arena most."""
    sys.stdout.flush()  # so that the plan can be read meanwhile
    if (cure := cure_line(memory_plan, options)) is not None:
        tell(["", f"To fit: {cure}"], below="  ")
        sys.stdout.flush()
    lines = Alternatives(options).lowering(memory_plan).told(MOST)
    tell(["", *lines] if lines else [], below="  ")


def _show_family(options: argparse.Namespace) -> None:
    """Print the plans of several sizes in one arena, as JSON or as a table."""
    given = ("frontier", "output", "text", "dump")
    wrong = [f"--{name}" for name in given if getattr(options, name)]
    if wrong:
        raise OptionError(f"--sizes prints a table of plans; leave out {', '.join(wrong)}")
    values = {
        name: each if isinstance(each, tuple) else (each,)
        for name, each in parse_settings(options.sizes).items()
    }
    build_size = sized(options.model, options.settings, list(values))
    found = plan_family(build_size, values, **plan_options(options))
    if options.json:
        sized_as = [f"{name}={each}" for name, each in found.sizes[0].items()]
        settings = [each for each in options.settings if each.partition("=")[0] not in values]
        made_by = identity(argparse.Namespace(**{**vars(options), "settings": settings + sized_as}))
        for name in values:
            made_by["arguments"].pop(name, None)
        say(json.dumps({**made_by, **found.as_json()}, default=str))
        return
    say(found)


def _show_frontier(options: argparse.Namespace) -> None:
    """Print plans from the fewest bytes to the least time, as JSON or as a table."""
    if options.optimizer == "none":
        raise OptionError("--frontier needs a training step; leave out --optimizer none")
    chosen = plan_options(options)
    decided = (*declared(RecomputeOptions), "dump")
    host = {name: chosen.pop(name) for name in declared(HostOptions)}
    given = [name for name in decided if chosen.pop(name, None) is not None]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise OptionError(f"--frontier shows plans for all budgets; leave out {names}")
    points = frontier(build(options.model, options.settings), **host, **chosen)
    if options.output is not None:
        _draw_frontier(options, points)
    if options.json:
        found = {**identity(options), "frontier": [asdict(p) for p in points]}
        say(json.dumps(found, default=str))
        return
    columns = ("arena", "paper's measure", "extra time", "proven", "extra flops")
    table = Table(*columns, box=None, title=f"no plan below {format_bytes(points[0].bound_bytes)}")
    for column in table.columns:
        column.justify = "right"
    for point in points:
        table.add_row(
            format_bytes(point.arena_bytes, up=True),
            format_bytes(point.feature_map_bytes, up=True),
            f"{point.extra_time_fraction:.2%}",
            f"{point.extra_time_bound:.2%}",
            f"{point.extra_flops_fraction:.2%}",
        )
    Console(width=WIDTH).print(table)


def _draw_frontier(options: argparse.Namespace, points: Sequence[FrontierPoint]) -> None:
    """Draw the trade-off curve, with the paper's policies marked."""
    from graphc.view.picture import frontier_picture  # needs matplotlib, an extra

    marked = {name: plan_from_arguments(options, recompute=name) for name in MARKED}
    title = f"{options.model}: arena against extra time"
    picture = frontier_picture(points, marked, points[0].bound_bytes, title)
    write_atomically(options.output, picture, OptionError)
