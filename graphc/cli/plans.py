"""Plans that commands make from their options, and descriptions of plans as JSON."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Collection
from typing import Any

from graphc.byte_sizes import parse_bytes
from graphc.cli.arguments import planned_steps, recipe
from graphc.cli.models import arguments_of, build
from graphc.cli.parser import Parser
from graphc.cli.terminal import complain, say
from graphc.compiler.compile import device_of, plan
from graphc.devices.device import find_device
from graphc.errors import BudgetError, CapacityError, GraphcError, OptionError
from graphc.files import is_regular
from graphc.keywords import declared
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import load_costs
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.memory import memory_of
from graphc.training.recipe import Recipe

DEFAULT = Recipe(optimizer="sgd")

SUFFIX = ".json"
"""The suffix of a MODEL that is a plan from a file."""

PICTURE = ".png"
"""The suffix of an output file that is a chart."""

WRITTEN_FORMS = {SUFFIX: "a plan as JSON", PICTURE: "a chart as PNG"}
"""Suffix of an output file → the name of its format, for messages."""


def check_alone(
    parser: Parser,
    options: argparse.Namespace,
    showing: Collection[str],
    what: str | None = None,
) -> None:
    """Raise `OptionError` for options that do not apply to a plan from a file.

    `what` begins the message; by default, it says that the model is a plan.
    """
    told = [flag for name, flag in parser.given.items() if name not in showing]
    if options.settings or told:
        raise OptionError(
            f"{what or repr(options.model) + ' is a finished plan'}; leave out "
            f"{', '.join(told + options.settings)}"
        )


def plan_from_arguments(options: argparse.Namespace, **strategy: Any) -> MemoryPlan:
    """Return the plan for the options and the strategy; optimizer ``none`` plans inference."""
    loss = build(options.model, options.settings)
    return plan(loss, **{**plan_options(options), **strategy})


def check_suffix(path: str, suffix: str) -> None:
    """Raise `OptionError` if a file's suffix names another format than the one to write."""
    if is_regular(path) and not path.endswith(suffix):
        raise OptionError(f"{path!r} must end in {suffix}, since it holds {WRITTEN_FORMS[suffix]}")
    if suffix == PICTURE:
        check_pictures()


def check_pictures() -> None:
    """Raise `DependencyError` if matplotlib is missing, before any work is done."""
    importlib.import_module("graphc.view.picture")


def cost_model(memory_plan: MemoryPlan, roofline: str | None, costs: str | None) -> CostModel:
    """Return the cost model of --roofline and --costs, by default the device's roofline."""
    device = find_device(roofline) if roofline else None
    return CostModel.of(memory_plan, device, load_costs(costs) if costs else None)


def plan_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as keyword arguments of `graphc.plan`."""
    chosen = recipe(options)
    steps = planned_steps(options, chosen)
    trains = options.optimizer != "none"
    optimizer = {"optimizer": chosen.make_optimizer(steps)} if trains else {}
    return {**optimizer, **chosen.plan_options(), "dump": options.dump}


def written(options: argparse.Namespace) -> None:
    """Print the path of the output file, to standard error if --json is given."""
    if options.output is not None:
        line = f"written to {options.output}"
        if options.json:
            complain(line)
        else:
            say(line)


def described(
    plan: MemoryPlan, options: argparse.Namespace | None, model: str, **strategy: Any
) -> dict[str, Any]:
    """Return a plan as a JSON object, with the options that made it.

    `options` is None for a plan from a file.
    """
    made_by = _made_by(options, strategy) if options is not None else {}
    return {**plan.summary(model), **_memory(plan), **made_by}


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Return the model and the options as a JSON object, for results without a single plan."""
    device = device_of(options.device, options.roofline).name
    return {"model": options.model, "device": device, **_made_by(options, {})}


def infeasible(error: BudgetError | CapacityError, options: argparse.Namespace) -> dict[str, Any]:
    """Return a JSON object for a budget that no plan fits, or a capacity that no packing fits.

    It has the options and the fields of the error.
    """
    try:
        made_by = identity(options)
    except (AttributeError, GraphcError):  # a problem file has no model
        made_by = {}
    found = {**made_by, "error": str(error), **vars(error)}
    if isinstance(error, BudgetError):
        found["values"] = [{"names": names, "bytes": size} for names, size in error.values]
    return found


def _memory(plan: MemoryPlan) -> dict[str, Any]:
    """Return JSON entries for the device's memory, and whether the plan fits; None if unknown."""
    memory = memory_of(plan.device)
    return {
        "memory_bytes": None if memory is None else memory.total_bytes,
        "usable_bytes": None if memory is None else memory.usable_bytes,
        "fits": None if memory is None else memory.spare_bytes(plan.arena_bytes) >= 0,
    }


def _made_by(options: argparse.Namespace, strategy: dict[str, Any]) -> dict[str, Any]:
    given = {**vars(options), **strategy}
    chosen = {name: given[name] for name in declared(Recipe) if name in given}
    budget = chosen.get("budget")
    is_model = not options.model.endswith(SUFFIX)
    return {
        "arguments": arguments_of(options.model, options.settings) if is_model else {},
        "options": chosen,
        "budget_bytes": None if budget is None else parse_bytes("budget", budget),
    }
