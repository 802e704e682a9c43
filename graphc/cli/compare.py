"""graphc compare: one row for each allocation strategy, policy, budget and plan from a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.byte_sizes import exact_bytes, format_bytes
from graphc.cli.advice import fit_line
from graphc.cli.arguments import add_costs, add_options, add_order, add_recipe, check_writable
from graphc.cli.models import add_model
from graphc.cli.parser import Parser
from graphc.cli.plans import (
    DEFAULT,
    PICTURE,
    SUFFIX,
    check_alone,
    check_suffix,
    described,
    plan_from_arguments,
    written,
)
from graphc.cli.terminal import INFEASIBLE, WIDTH, Console, say, tell
from graphc.compiler.options import PlanOptions
from graphc.errors import BudgetError, OptionError
from graphc.files import write_atomically
from graphc.memory.coloring import MOST_COLORED, ColoringError
from graphc.plans.memory_plan import ALLOCATE, MemoryPlan
from graphc.plans.plan_file import load_plan

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

SHOWING = ("model", "settings", "output", "json", "takes_word", "run")
"""Options that determine what is printed or written, and do not change plans."""

LONGEST = 18
"""Maximum width of a row's name; longer names are wrapped."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("compare", help="compare strategies, policies and budgets")
    add_model(parser, "FILE.json, a plan; further plans after MODEL add rows")
    parser.add_argument(
        "--budget", dest="budgets", metavar="B", action="append", default=[],
        help="add the fastest plan within a budget, such as 7GiB; repeatable",
    )  # fmt: skip
    add_recipe(parser, DEFAULT, ("none",))
    add_costs(parser)
    add_options(parser, PlanOptions, ("device",))
    add_order(parser)
    parser.add_argument("--json", action="store_true", help="a list of plan objects")
    parser.add_argument(
        "-o", "--output", metavar="FILE.png", help="bars by strategy, split by kind (matplotlib)"
    )
    parser.set_defaults(run=partial(run, parser), dump=None, takes_word=True)


POLICIES: tuple[dict[str, Any], ...] = (
    *({"recompute": "none", "allocate": allocate} for allocate in ALLOCATE),
    {"recompute": "cheap"},
    {"recompute": "sublinear"},
    {"recompute": "recursive"},
    {"max_extra_flops": 0.33},
)
"""Recomputation policies to compare, as in Fig. 5 and 6 of the paper. They are allocation
strategies without recomputation, the paper's policies with offsets in one arena, and the plan with
the fewest bytes for the flops of about one more forward pass."""


PACKED = ("none", "packed")
"""The name and the strategy of the packed plan without recomputation, with which others are
compared."""


@dataclass(frozen=True)
class Row:
    """A plan with its name, and the options in which it differs; None for a plan from a file."""

    name: str
    plan: MemoryPlan
    strategy: dict[str, Any] | None = field(default_factory=dict)


def run(parser: Parser, options: argparse.Namespace) -> int:
    """Plan the model under every strategy without recomputation, then under every policy.

    Return `INFEASIBLE` if no plan fits one of the budgets.
    """
    if options.output is not None:
        check_writable(options.output)
        check_suffix(options.output, PICTURE)
    unmet: dict[str, BudgetError] = {}
    words = [entry for entry in options.settings if "=" not in entry and entry.endswith(SUFFIX)]
    options.settings = [entry for entry in options.settings if entry not in words]
    if options.model.endswith(SUFFIX):
        check_alone(parser, options, SHOWING)
        words.insert(0, options.model)
        rows = []
    else:
        rows = _made(options, unmet)
    rows += _read(words)
    if options.output is not None:
        _draw(options, rows)
    if options.json:
        say(json.dumps([_described(row, options) for row in rows], default=str))
    else:
        named = [(f"{row.name}, {row.plan.allocate}", row.plan) for row in rows]
        say(fit_line(named, options if not options.model.endswith(SUFFIX) else None))
        Console(width=WIDTH).print(_table(rows, tuple(unmet)))
        tell(
            f"{name}: the smallest plan found needs {exact_bytes(error.least_bytes, up=True)}"
            for name, error in unmet.items()
        )
        tell(_order_note(rows))
        if not (options.model.endswith(SUFFIX) or any(_is_colored(row) for row in rows)):
            tell([f"coloring: no row, as it is for at most {MOST_COLORED:,} values"])
    written(options)
    return INFEASIBLE if unmet else 0


def _order_note(rows: Sequence[Row]) -> list[str]:
    """Return a note if the order of a packed plan changes the bytes of the other strategies."""
    sizes: dict[str, int] = {
        row.plan.allocate: row.plan.arena_bytes for row in rows if row.name == "none"
    }
    packed = next((row.plan for row in rows if (row.name, row.plan.allocate) == PACKED), None)
    if packed is None:
        return []
    if all(sizes.get(name, size) == size for name, size in packed.strategy_bytes.items()):
        return []
    return [
        "order: packed plans reorder nodes, the other strategies do not; graphc plan prints the "
        "bytes of all strategies in its own plan's node order"
    ]


def _is_colored(row: Row) -> bool:
    return row.plan.allocate == "coloring"


def _made(options: argparse.Namespace, unmet: dict[str, BudgetError]) -> list[Row]:
    """Return one row for each strategy, policy and budget of the model.

    Errors of budgets into which nothing fits are added to `unmet`, by the name of the row. With
    ``--json``, the first of them is raised, since it is printed as an object.
    """
    trains = options.optimizer != "none"
    if not trains and options.budgets:
        raise OptionError("--budget applies only to training steps; leave out --optimizer none")
    rows = []
    for choice in POLICIES if trains else POLICIES[: len(ALLOCATE)]:
        try:
            found = plan_from_arguments(options, **choice)
        except ColoringError:
            continue  # `run` prints why
        rows.append(Row(found.recompute, found, choice))
    for budget in options.budgets:
        choice = {"budget": budget}
        try:
            found = plan_from_arguments(options, **choice)
        except BudgetError as error:
            if options.json:
                options.budget = budget  # the object describes this budget
                raise
            unmet[f"budget {budget}"] = error
            continue
        rows.append(Row(f"budget {budget}", found, choice))
    return rows


def _read(paths: Sequence[str]) -> list[Row]:
    """Return one row for each plan from a file; plans with equal file names are named by path."""
    names = [Path(path).name for path in paths]
    return [
        Row(name if names.count(name) == 1 else path, load_plan(path), None)
        for name, path in zip(names, paths, strict=True)
    ]


def _described(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    if row.strategy is None:
        return described(row.plan, None, row.name)
    return described(row.plan, options, options.model, **row.strategy)


def _table(rows: Sequence[Row], unmet: Sequence[str] = ()) -> Table:
    """Return a table of plans, and of the budgets into which nothing fits."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("plan", max_width=LONGEST, overflow="fold")
    table.add_column("allocate", no_wrap=True)
    for column in (
        "paper's\nmeasure", "\narena", "\ngap", "extra\nflops", "extra\ntime", "planning\nseconds"
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    has_streams = any(row.plan.streams is not None for row in rows)
    if has_streams:  # speed relative to one stream, by the cost model
        table.add_column("\nspeed", justify="right", no_wrap=True)
    has_host = any(row.plan.host_bytes for row in rows)
    if has_host:
        table.add_column("on the\nhost", justify="right", no_wrap=True)
    for row in rows:
        plan, again = row.plan, row.plan.recomputation
        faster = 1.0 if plan.streams is None else plan.streams.speedup
        table.add_row(
            row.name,
            plan.allocate,
            format_bytes(plan.feature_map_bytes),
            format_bytes(plan.arena_bytes),
            f"{plan.arena_bytes / plan.live_bytes - 1:.1%}",
            f"{again.extra_flops_fraction:.1%}",
            f"{again.extra_time_fraction:.1%}",
            f"{plan.planning_seconds:.2f}",
            *([f"{faster:.2f}x"] if has_streams else []),
            *([format_bytes(plan.host_bytes)] if has_host else []),
        )
    for name in unmet:
        table.add_row(name, "nothing fits")
    return table


def _draw(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    from graphc.view.picture import compare_picture  # needs matplotlib, an extra

    # Plans without recomputation differ in allocation, the others in recomputation.
    bars = [(row.plan.allocate if row.name == "none" else row.name, row.plan) for row in rows]
    picture = compare_picture(bars, f"{options.model}: arena by strategy")
    write_atomically(options.output, picture, OptionError)
