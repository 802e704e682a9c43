"""graphc ranks: bytes and modeled step time of a rank, for one to thousands of ranks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.byte_sizes import format_bytes
from graphc.cli.arguments import add_options, add_recipe, add_strategy
from graphc.cli.models import add_model, build
from graphc.cli.plans import DEFAULT, identity, plan_options
from graphc.cli.terminal import Console, say
from graphc.compiler.compile import plan
from graphc.compiler.options import PlanOptions
from graphc.errors import OptionError
from graphc.plans.exchange_times import ALGORITHMS
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.rank_model import RankModel, model_rank
from graphc.progress import report

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

MOST = 4096
"""Default for the largest number of ranks in the table."""

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a number of ranks, and the plan, step and communication of one rank."""

    ranks: int
    plan: MemoryPlan
    model: RankModel
    by_algorithm: dict[str, RankModel]
    alone_seconds: float

    @property
    def efficiency(self) -> float:
        """Weak scaling efficiency: the step time of one rank divided by that of all `ranks`."""
        return self.alone_seconds / self.model.seconds if self.model.seconds else 1.0


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("ranks", help="model bytes and time per rank for 1 to N ranks")
    add_model(parser)
    add_options(parser, PlanOptions, ("device",))
    add_strategy(parser)
    add_recipe(parser, replace(DEFAULT, ranks=MOST))
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Plan one rank for each number of ranks (1, 2, 4, ... up to --ranks), and print a row each."""
    if options.dump is not None:
        raise OptionError("--dump applies to one plan; leave it out, or use graphc plan")
    rows = list(_rows(options))
    if options.json:
        say(json.dumps({**identity(options), "ranks": [_described(row) for row in rows]}))
        return
    table = Table("ranks", box=None)
    for column in ("arena", "states", "sent", *ALGORITHMS, "a step", "hidden", "of alone"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    device = rows[0].plan.device.name
    say(f"a step of a rank on {device}, in milliseconds by the cost model, without launches")
    Console(width=WIDTH).print(table)


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    loss, chosen = build(options.model, options.settings), plan_options(options)
    alone = 0.0
    for ranks in _doubling(options.ranks):
        report(f"planning {ranks} ranks")
        found = plan(loss, **{**chosen, "ranks": ranks})
        model = model_rank(found)
        alone = alone or model.seconds
        by_algorithm = {
            name: model_rank(found, algorithm=each) for name, each in ALGORITHMS.items()
        }
        yield Row(ranks, found, model, by_algorithm, alone)


def _doubling(last: int) -> Iterator[int]:
    """Yield the powers of two below `last`, then `last`."""
    ranks = 1
    while ranks < last:
        yield ranks
        ranks *= 2
    yield last


def _cells(row: Row) -> Iterator[str]:
    yield f"{row.ranks:,}"
    yield format_bytes(row.plan.arena_bytes)
    yield format_bytes(row.plan.state_bytes)
    yield format_bytes(row.model.sent_bytes)
    for each in row.by_algorithm.values():
        yield _milliseconds(each.exchange_seconds)
    yield _milliseconds(row.model.seconds)
    yield f"{row.model.hidden:.0%}" if row.model.exchanges else ""
    yield f"{row.efficiency:.1%}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _described(row: Row) -> dict[str, Any]:
    by_algorithm = {name: each.exchange_seconds for name, each in row.by_algorithm.items()}
    return {
        "ranks": row.ranks,
        "arena_bytes": row.plan.arena_bytes,
        "state_bytes": row.plan.state_bytes,
        "exchanges": row.model.exchanges,
        "sent_bytes": row.model.sent_bytes,
        "room_bytes": row.model.room_bytes,
        "exchange_seconds": row.model.exchange_seconds,
        "exchange_seconds_by_algorithm": by_algorithm,
        "computing_seconds": row.model.computing_seconds,
        "step_seconds": row.model.seconds,
        "hidden_fraction": row.model.hidden,
        "efficiency": row.efficiency,
    }
