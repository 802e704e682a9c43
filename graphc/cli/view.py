"""graphc view: show a plan as a page, a picture, a trace, or a snapshot for PyTorch's viewer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.byte_sizes import parse_bytes
from graphc.cli.advice import MOST, Alternatives, fit_line, place
from graphc.cli.arguments import (
    add_options,
    add_recipe,
    add_steps,
    add_strategy,
    check_writable,
)
from graphc.cli.models import add_model
from graphc.cli.parser import Parser
from graphc.cli.plans import (
    DEFAULT,
    SUFFIX,
    check_alone,
    check_pictures,
    cost_model,
    plan_from_arguments,
)
from graphc.cli.terminal import say, tell
from graphc.compiler.options import PlanOptions
from graphc.errors import OptionError, choose, whole_number
from graphc.files import is_regular, write_atomically
from graphc.plans.memory_plan import ALLOCATE, RECOMPUTE, MemoryPlan
from graphc.plans.plan_file import load_plan
from graphc.progress import report
from graphc.runtime.memory import memory_of
from graphc.runtime.ranks.world import find_world
from graphc.view.clock import Clock, estimated
from graphc.view.difference import differences
from graphc.view.measured import measured
from graphc.view.page import Limit, page
from graphc.view.snapshot import snapshot
from graphc.view.trace import trace

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

TIMES = ("costs", "roofline", "measure")
"""Options that select the seconds of nodes to show."""

SHOWING = ("model", "settings", "output", "strategies", "diff", *TIMES, "run")
"""Options that determine what is written, and do not change the plan."""


Writer = Callable[[Mapping[str, MemoryPlan], argparse.Namespace, list[str]], bytes]


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("view", help="write a plan as a page, a picture or a trace")
    add_model(parser, "FILE.json, a plan written by `graphc plan --output`", is_optional=True)
    parser.add_argument(
        "-o", "--output", metavar="FILE",
        help="ends in " + ", ".join(WRITERS) + " (default: plan.html; with --diff: none)",
    )  # fmt: skip
    parser.add_argument(
        "--strategies", metavar="S,S,...",
        help="add a tab for each allocation or recomputation, such as "
        "none,sharing,packed,cheap,sublinear",
    )  # fmt: skip
    parser.add_argument(
        "--diff", nargs=2, metavar=("A.json", "B.json"), help="list the differences of two plans"
    )
    parser.add_argument(
        "--measure", type=int, metavar="N",
        help="run N steps on this CPU, and show each node's best time",
    )  # fmt: skip
    add_strategy(parser)
    add_options(parser, PlanOptions, ("device",))
    add_recipe(parser, DEFAULT, ("none",))
    add_steps(parser)
    parser.set_defaults(run=partial(run, parser))


def run(parser: Parser, options: argparse.Namespace) -> None:
    """Make the plans, write the file, and print differences if requested."""
    output = "plan.html" if options.output is None and not options.diff else options.output
    write = None if output is None else _writer(output)
    _check_times(options, write)
    has_several = bool(options.diff) or "," in (options.strategies or "")
    if write not in (None, _page) and has_several:
        raise OptionError("only a page, FILE.html, can show several plans; choose one")
    if output is not None:
        check_writable(output)
        if write is _picture:
            check_pictures()
    plans = _plans(parser, options)
    if not options.diff:
        say(fit_line([*plans.items()], None if options.model.endswith(SUFFIX) else options))
    notes: list[str] = []
    if options.diff:
        notes = differences(*plans.values())
        tell(notes)
    if write is not None:
        report(f"making {output}")
        content = write(plans, options, notes)
        if find_world().rank == 0:  # all ranks take part in a measurement
            write_atomically(output, content, OptionError)
            say(f"written to {output}")


def _check_times(options: argparse.Namespace, write: Writer | None) -> None:
    """Raise `OptionError` for options on times of nodes if the output does not show times."""
    if options.measure is not None:
        whole_number("--measure", options.measure)
    if write in (_page, _trace):
        return
    is_planned = not options.diff and not (options.model or "").endswith(SUFFIX)
    given = [f"--{name}" for name in TIMES if getattr(options, name) is not None]
    unused = given if not is_planned else [name for name in given if name == "--measure"]
    if unused:
        raise OptionError(
            f"{', '.join(unused)}: only a page, -o FILE.html, or a trace, "
            "-o FILE.trace.json, shows times"
        )


def _plans(parser: Parser, options: argparse.Namespace) -> dict[str, MemoryPlan]:
    """Return the plans to view, by the labels of their tabs."""
    if options.diff:
        return _two_plans(parser, options)
    if options.model is None:
        raise OptionError("give a MODEL or a plan, or two plans with --diff")
    if options.model.endswith(SUFFIX):
        if options.strategies is not None:
            raise OptionError(
                f"{options.model!r} is a finished plan; leave out --strategies, or give the model"
            )
        check_alone(parser, options, SHOWING)
        return {Path(options.model).stem: load_plan(options.model)}
    if options.strategies is None:
        found = plan_from_arguments(options)
        return {f"{found.recompute}, {found.allocate}": found}
    return _tabs(parser, options)


def _two_plans(parser: Parser, options: argparse.Namespace) -> dict[str, MemoryPlan]:
    rule = "--diff shows two plans from files"
    if options.strategies is not None:
        raise OptionError(f"{rule}; leave out --strategies")
    if options.model is not None:
        raise OptionError(f"{rule}; leave out {options.model!r}")
    check_alone(parser, options, SHOWING, rule)
    paths: list[str] = options.diff
    labels = [Path(path).stem for path in paths]
    if labels[0] == labels[1]:
        labels = [f"{path} ({number})" for number, path in enumerate(paths, 1)]
    return dict(zip(labels, map(load_plan, paths), strict=True))


def _tabs(parser: Parser, options: argparse.Namespace) -> dict[str, MemoryPlan]:
    """Return one plan for each name in --strategies, by the label of its tab."""
    names = [name.strip() for name in options.strategies.split(",")]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise OptionError(f"--strategies lists {twice[0]!r} twice; each strategy is one tab")
    for name in ("allocate", "recompute", "dump"):
        if name in parser.given:
            raise OptionError(
                f"--strategies determines how plans are made; leave out --{name}, or --strategies"
            )
    chosen = {name: strategy(name) for name in names}
    return {name: plan_from_arguments(options, **each) for name, each in chosen.items()}


def strategy(name: str) -> dict[str, Any]:
    """Return the keyword arguments of `graphc.plan` for a strategy.

    A strategy is an allocation strategy or a recomputation policy; ``none`` is an allocation
    strategy.
    """
    choose("strategy", name, tuple(dict.fromkeys((*ALLOCATE, *RECOMPUTE))))
    if name in ALLOCATE:
        return {"allocate": name, "recompute": "none"}
    return {"recompute": name}


def _writer(output: str) -> Writer:
    for suffix, write in WRITERS.items():
        if output.endswith(suffix):
            return write
    if output and not is_regular(output):  # a pipe, for example
        return _page
    raise OptionError(f"{output!r} must end in one of: {', '.join(WRITERS)}")


def _title(options: argparse.Namespace) -> str:
    if options.diff:
        return " and ".join(options.diff)
    return " ".join([options.model, *options.settings])


def _page(plans: Mapping[str, MemoryPlan], options: argparse.Namespace, notes: list[str]) -> bytes:
    clocks = {label: [*_clocks(found, options).values()][-1] for label, found in plans.items()}
    lowering, opened = _lowering(plans, options), None
    if options.strategies is not None:
        opened = min(plans, key=lambda label: plans[label].arena_bytes)
    found = page(
        plans, _title(options), clocks, notes,
        lowering=lowering, limits=_limits(plans, options), opened=opened,
    )  # fmt: skip
    return found.encode("utf-8")


def _limits(plans: Mapping[str, MemoryPlan], options: argparse.Namespace) -> dict[str, Limit]:
    """Return the capacity to show for each plan: the given budget, else the device's memory."""
    if options.budget is not None:
        budget = Limit(parse_bytes("budget", options.budget), "budget")
        return dict.fromkeys(plans, budget)
    known = {label: memory_of(found.device) for label, found in plans.items()}
    return {
        label: Limit(memory.usable_bytes, f"memory of {place(memory)}")
        for label, memory in known.items()
        if memory is not None
    }


def _lowering(plans: Mapping[str, MemoryPlan], options: argparse.Namespace) -> dict[str, list[str]]:
    """Return sentences on changes that lower each plan's arena.

    They are empty for plans from files.
    """
    if options.diff or options.model.endswith(SUFFIX):
        return {}
    alternatives = Alternatives(options)
    strategies = {label: strategy(label) if options.strategies else {} for label in plans}
    for label, found in plans.items():
        alternatives.know(found, **strategies[label])
    told = {}
    for label, found in plans.items():
        lowering = alternatives.lowering(found, 1 / len(plans), **strategies[label])
        told[label] = [*map(str, lowering.changes[:MOST]), *lowering.beside()]
    return told


def _clocks(plan: MemoryPlan, options: argparse.Namespace) -> dict[str, Clock]:
    """Return node times for a page: planned and, if requested, profiled or measured."""
    clocks = {"planned": estimated(plan, cost_model(plan, options.roofline, None))}
    if options.costs is not None:
        costs = cost_model(plan, options.roofline, options.costs)
        clocks["profiled"] = estimated(plan, costs)
    if options.measure is not None:
        clocks["measured"] = measured(plan, options.measure)
    return clocks


def _picture(
    plans: Mapping[str, MemoryPlan], options: argparse.Namespace, notes: list[str]
) -> bytes:
    from graphc.view.picture import plan_picture  # needs matplotlib, an extra

    ((label, found),) = plans.items()
    return plan_picture(found, f"{_title(options)}: {label}")


def _trace(plans: Mapping[str, MemoryPlan], options: argparse.Namespace, notes: list[str]) -> bytes:
    (found,) = plans.values()
    return trace(found, _clocks(found, options)).encode("ascii")


def _snapshot(
    plans: Mapping[str, MemoryPlan], options: argparse.Namespace, notes: list[str]
) -> bytes:
    (found,) = plans.values()
    return snapshot(found)


WRITERS: dict[str, Writer] = {
    ".html": _page,
    ".png": _picture,
    ".trace.json": _trace,
    ".snapshot.pickle": _snapshot,
}
"""Writers of output files by suffix."""
