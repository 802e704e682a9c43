"""graphc explain: why a value is kept or computed again, or what makes the peak, in sentences."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from graphc.cli.arguments import add_options, add_recipe, add_steps, add_strategy
from graphc.cli.models import add_model, setting
from graphc.cli.plans import DEFAULT, SUFFIX, check_alone, cost_model, plan_from_arguments
from graphc.errors import GraphcError, OptionError
from graphc.ir.types import format_bytes
from graphc.options import GOALS, PlanOptions
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.plan_file import load_plan
from graphc.view.explain import explain_value
from graphc.view.matching import find_value
from graphc.view.peak import explain_kept, explain_peak

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

SHOWING = ("model", "settings", "peak", "kept", "value", "costs", "roofline", "run")
"""Options that say what to do with a plan, not which one to make."""

FOR_A_MODEL = "What would lower the arena is told of a model, not of a plan from a file."

ALTERNATIVES = ("cheap", "sublinear", "recursive")
"""Policies that may lower a peak."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "explain", help="why a value is kept, what is, and what makes the peak"
    )
    add_model(parser, "FILE.json, a plan; a word behind it without = is the VALUE")
    parser.add_argument(
        "--value", metavar="VALUE", help="the same as VALUE behind MODEL: a name, or scope and op"
    )
    parser.add_argument("--peak", action="store_true", help="what makes the peak, and lowers it")
    parser.add_argument(
        "--kept", action="store_true", help="what the forward pass keeps for the gradient"
    )
    add_strategy(parser)
    add_options(parser, PlanOptions, ("device",))
    add_recipe(parser, DEFAULT, ("none",))
    add_steps(parser)
    parser.set_defaults(run=partial(run, parser), takes_word=True)


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print sentences, one a line."""
    words = [entry for entry in options.settings if "=" not in entry]
    words += [options.value] if options.value is not None else []
    options.settings = [entry for entry in options.settings if "=" in entry]
    if len(words) + options.peak + options.kept != 1:
        raise OptionError("explain one thing: give one VALUE, such as %12, or --peak, or --kept")
    is_file = options.model.endswith(SUFFIX)
    if is_file:
        unused = ("costs", "roofline") if options.kept else ()
        check_alone(parser, options, [name for name in SHOWING if name not in unused])
    plan = load_plan(options.model) if is_file else plan_from_arguments(options)
    costs = cost_model(plan, options.roofline, options.costs)
    if words:
        lines = explain_value(plan, find_value(plan, words[0]), costs)
    elif options.kept:
        lines = explain_kept(plan)
    else:
        lines = explain_peak(plan, costs)
        lines += _what_lowers(options, plan) if not is_file else [FOR_A_MODEL]
    print("\n".join(lines))


def _what_lowers(options: argparse.Namespace, plan: MemoryPlan) -> list[str]:
    """Plans of the same model that need less, by bytes."""
    tried = list(_alternatives(options, plan))
    found = [(other, how) for how, other in tried if other.arena_bytes < plan.arena_bytes]
    found.sort(key=lambda entry: entry[0].arena_bytes)
    if found:
        return ["What lowers the arena:", *(f"  {_line(plan, other, how)}" for other, how in found)]
    if tried:
        return [f"The arena is not lowered by {', '.join(how for how, _ in tried)}."]
    return []


def _line(plan: MemoryPlan, other: MemoryPlan, how: str) -> str:
    saved = plan.arena_bytes - other.arena_bytes
    extra = other.recomputation.extra_time_fraction - plan.recomputation.extra_time_fraction
    # Parts of steps of two batches say nothing of each other.
    has_same_step = [v.type for v in other.graph.inputs] == [v.type for v in plan.graph.inputs]
    is_told = has_same_step and abs(extra) >= 0.0005
    time = f", {extra:+.1%} time by the cost model" if is_told else ""
    return f"{format_bytes(other.arena_bytes)}, {format_bytes(saved)} less{time}: {how}"


def _alternatives(
    options: argparse.Namespace, plan: MemoryPlan
) -> Iterator[tuple[str, MemoryPlan]]:
    """Place better, reorder, keep less, a smaller batch; what cannot be planned is left out."""
    make = partial(plan_from_arguments, dump=None)
    if options.allocate != "packed":
        yield "--allocate packed", make(options, allocate="packed")
    if not options.reorder:
        yield "leaving out --keep-order", make(options, reorder=True)
    has_goal = any(getattr(options, goal) is not None for goal in GOALS)
    if options.optimizer != "none" and not has_goal:
        for policy in ALTERNATIVES:
            if policy != plan.recompute:
                yield f"--recompute {policy}", make(options, recompute=policy)
        goal = {"recompute": "optimal", "max_extra_flops": 0.33}
        yield "--recompute optimal --max-extra-flops 0.33", make(options, **goal)
    batch = setting(options.model, options.settings, "batch")
    if isinstance(batch, int) and batch > 1:
        smaller = argparse.Namespace(**vars(options))
        smaller.settings = [e for e in options.settings if not e.startswith("batch=")]
        smaller.settings.append(f"batch={batch // 2}")
        try:
            yield f"batch={batch // 2}, half of it", make(smaller)
        except GraphcError:  # a budget, or a model of the user's own, may not allow it
            return
