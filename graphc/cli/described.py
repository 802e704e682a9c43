"""JSON descriptions of plans: the model with all its arguments, the options and the device."""

from __future__ import annotations

import argparse
from typing import Any

from graphc.cli.fits import memory_object
from graphc.cli.models import arguments_of
from graphc.cli.plans import SUFFIX
from graphc.compiler import device_of
from graphc.errors import BudgetError, GraphcError
from graphc.ir.types import parse_bytes
from graphc.keywords import declared
from graphc.plans.memory_plan import MemoryPlan
from graphc.training.recipe import Recipe


def described(
    plan: MemoryPlan, options: argparse.Namespace | None, model: str, **strategy: Any
) -> dict[str, Any]:
    """Describe a plan made by `options` and `strategy`; `options` is None if it is from a file."""
    made_by = _made_by(options, strategy) if options is not None else {}
    return {**plan.summary(model), **memory_object(plan), **made_by}


def identity(options: argparse.Namespace) -> dict[str, Any]:
    """Describe the model and the options, for objects with no plan or several plans."""
    device = device_of(options.device, options.roofline).name
    return {"model": options.model, "device": device, **_made_by(options, {})}


def infeasible(error: BudgetError, options: argparse.Namespace) -> dict[str, Any]:
    """Describe a budget that cannot be met: the options, the bounds, and the values at the peak."""
    try:
        made_by = identity(options)
    except (AttributeError, GraphcError):  # a problem file has no model
        made_by = {}
    return {
        **made_by,
        "error": str(error),
        "least_bytes": error.least_bytes,
        "bound_bytes": error.bound_bytes,
        "node": error.node,
        "values": [{"names": names, "bytes": size} for names, size in error.values],
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
