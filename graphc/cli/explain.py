"""graphc explain: sentences on why a value is saved or recomputed, and what causes the peak."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from graphc.cli.advice import Alternatives, fits_line
from graphc.cli.arguments import add_options, add_recipe, add_steps, add_strategy
from graphc.cli.models import add_model
from graphc.cli.parser import Parser
from graphc.cli.plans import (
    DEFAULT,
    SUFFIX,
    check_alone,
    cost_model,
    described,
    plan_from_arguments,
)
from graphc.cli.terminal import say, tell
from graphc.compiler.options import PlanOptions
from graphc.errors import OptionError
from graphc.ir.graph import Value
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.plan_file import load_plan
from graphc.view.explain import explain_value, value_facts
from graphc.view.matching import find_value
from graphc.view.peak import explain_kept, explain_peak, kept_of, peak_of
from graphc.view.scopes import explain_scopes, scopes_at

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

SHOWING = (
    "model", "settings", "peak", "kept", "scopes", "json", "value", "costs", "roofline", "run",
)  # fmt: skip
"""Options that determine what is printed or written, and do not change the plan."""

FOR_A_MODEL = "What would lower the arena is told of a model, not of a plan from a file."

Told = tuple[dict[str, Any], list[str]]
"""Facts for JSON, and sentences for printing."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("explain", help="explain a value, saved values or the peak")
    add_model(parser, "FILE.json, a plan; a further word without = is the VALUE")
    parser.add_argument(
        "--value", metavar="VALUE", help="explain this value: a name, or scope and op"
    )
    parser.add_argument(
        "--peak", action="store_true", help="list the values at the peak, and what lowers it"
    )
    parser.add_argument(
        "--kept", action="store_true", help="list the values saved for the gradient"
    )
    parser.add_argument("--scopes", action="store_true", help="bytes at the peak by layer")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object; alone, without values"
    )
    add_strategy(parser)
    add_options(parser, PlanOptions, ("device",))
    add_recipe(parser, DEFAULT, ("none",))
    add_steps(parser)
    parser.set_defaults(run=partial(run, parser), takes_word=True)


def run(parser: Parser, options: argparse.Namespace) -> None:
    """Print an explanation of a value, the peak, saved values or scopes, as sentences or JSON."""
    words = [entry for entry in options.settings if "=" not in entry]
    words += [options.value] if options.value is not None else []
    options.settings = [entry for entry in options.settings if "=" in entry]
    asked = [name for name in ("peak", "kept", "scopes") if getattr(options, name)]
    if len(words) + len(asked) != 1 and not (options.json and not words and not asked):
        raise OptionError(
            "give exactly one of VALUE, such as %12, --peak, --kept and --scopes; --json "
            "without any of them prints all except values"
        )
    is_file = options.model.endswith(SUFFIX)
    if is_file:
        unused = ("costs", "roofline") if asked in (["kept"], ["scopes"]) else ()
        check_alone(parser, options, [name for name in SHOWING if name not in unused])
    plan = load_plan(options.model) if is_file else plan_from_arguments(options)
    costs = cost_model(plan, options.roofline, options.costs)
    if words:
        value = find_value(plan, words[0])
        parts = {"value": partial(_value, plan, value, costs)}
    else:
        every = {
            "peak": partial(_peak, plan, costs, None if is_file else options),
            "kept": partial(_kept, plan),
            "scopes": partial(_scopes, plan),
        }
        parts = {name: every[name] for name in asked or every}
    if not options.json:
        ((_, lines),) = [part() for part in parts.values()]
        say(fits_line(plan, None if is_file else options))
        tell(lines)
        return
    found: dict[str, Any] = {"plan": described(plan, None if is_file else options, options.model)}
    for name, part in parts.items():
        facts, lines = part()
        found[name] = {**facts, "sentences": lines}
    say(json.dumps(found, default=str))


def _value(plan: MemoryPlan, value: Value, costs: CostModel) -> Told:
    return value_facts(plan, value, costs), explain_value(plan, value, costs)


def _kept(plan: MemoryPlan) -> Told:
    return asdict(kept_of(plan)), explain_kept(plan)


def _scopes(plan: MemoryPlan) -> Told:
    return asdict(scopes_at(plan, plan.peak_step)), explain_scopes(plan)


def _peak(plan: MemoryPlan, costs: CostModel, options: argparse.Namespace | None) -> Told:
    """Explain the peak and, if the plan has options, the changes that lower it."""
    facts, lines = asdict(peak_of(plan, costs)), explain_peak(plan, costs)
    if options is None:
        return {**facts, "lowering": None}, [*lines, FOR_A_MODEL]
    lowering = Alternatives(options, work=None).lowering(plan)
    return {**facts, "lowering": asdict(lowering)}, [*lines, *lowering.told()]
