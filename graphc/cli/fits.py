"""Messages on device memory: if plans fit, and the budget that makes them fit."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

from graphc.cli.plans import plan_from_arguments
from graphc.cli.terminal import WIDTH
from graphc.errors import BudgetError
from graphc.ir.device_memory import GIB, MIB, DeviceMemory
from graphc.ir.types import format_bytes
from graphc.options import GOALS
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.memory import memory_of


def fits_line(plan: MemoryPlan, options: argparse.Namespace | None = None) -> str:
    """Return a line that says if a plan fits its device, with the bytes to spare or missing.

    If it does not fit, the line names a budget that does. `options` are the options of the plan,
    or None for a plan from a file.
    """
    memory = memory_of(plan.device)
    if memory is None:
        return f"the memory of {plan.device.name} is not known; the arena is {_told(plan)}"
    spare = memory.spare_bytes(plan.arena_bytes)
    if spare >= 0:
        return f"fits {place(memory)}: {_of(plan, memory)}, {format_bytes(spare)} to spare"
    needs = f"needs {_told(plan)}, {format_bytes(-spare)} more than {place(memory)} has"
    return needs if options is None else _wrapped(f"{needs}; {_cure(memory, plan, options)}")


def cure_line(plan: MemoryPlan, options: argparse.Namespace) -> str | None:
    """Return a hint how to make a plan fit its device; None if it fits or the memory is unknown.

    Finding the hint plans with that budget, which may take longer than the plan itself.
    """
    memory = memory_of(plan.device)
    if memory is None or memory.spare_bytes(plan.arena_bytes) >= 0:
        return None
    return _cure(memory, plan, options)


def fit_line(plans: Sequence[tuple[str, MemoryPlan]], options: argparse.Namespace | None) -> str:
    """Return a line with the number of plans that fit, and the fastest of them."""
    fewest = min((plan for _, plan in plans), key=lambda plan: plan.arena_bytes)
    if len({plan.device.name for _, plan in plans}) > 1:
        return _each_on_its_own(plans)
    memory = memory_of(fewest.device)
    if len(plans) == 1 or memory is None or memory.spare_bytes(fewest.arena_bytes) < 0:
        return fits_line(fewest, options)
    fitting = [entry for entry in plans if memory.spare_bytes(entry[1].arena_bytes) >= 0]
    name, best = min(
        fitting,
        key=lambda entry: (entry[1].recomputation.extra_time_fraction, entry[1].arena_bytes),
    )
    number = f"{len(fitting)} of {len(plans)}"
    spare = format_bytes(memory.spare_bytes(best.arena_bytes))
    return _wrapped(f"fits {place(memory)}: {number}; the fastest is {name}, {spare} to spare")


def _each_on_its_own(plans: Sequence[tuple[str, MemoryPlan]]) -> str:
    """Return a line on plans for several devices: how many fit, and which do not.

    Step times of different devices are not compared.
    """
    over, unknown = [], []
    for name, plan in plans:
        memory = memory_of(plan.device)
        if memory is None:
            unknown.append(f"the memory of {plan.device.name} is not known")
        elif memory.spare_bytes(plan.arena_bytes) < 0:
            short = format_bytes(-memory.spare_bytes(plan.arena_bytes))
            over.append(f"{name} needs {short} more than {place(memory)} has")
    number = len(plans) - len(over) - len(unknown)
    told = [f"fits its own device: {number} of {len(plans)}", *over, *dict.fromkeys(unknown)]
    return _wrapped("; ".join(told))


def memory_object(plan: MemoryPlan) -> dict[str, Any]:
    """Return the device memory and if the plan fits, for JSON; None for unknown values."""
    memory = memory_of(plan.device)
    return {
        "memory_bytes": None if memory is None else memory.total_bytes,
        "usable_bytes": None if memory is None else memory.usable_bytes,
        "fits": None if memory is None else memory.spare_bytes(plan.arena_bytes) >= 0,
    }


def as_budget(size: int) -> str:
    """Return `size` as a budget, rounded down to two decimals."""
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    return f"{100 * size // unit / 100:.2f}{name}"


def place(memory: DeviceMemory) -> str:
    """Return the name of the device with this memory, for use in a sentence."""
    return "this machine" if memory.name == "cpu" else memory.name


def _told(plan: MemoryPlan) -> str:
    return format_bytes(plan.arena_bytes)


def _of(plan: MemoryPlan, memory: DeviceMemory) -> str:
    return f"{_told(plan)} of {format_bytes(memory.usable_bytes)}"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, break_on_hyphens=False, break_long_words=False)


def _cure(memory: DeviceMemory, plan: MemoryPlan, options: argparse.Namespace) -> str:
    """Return the budget that makes a plan fit and its cost in time, or why none does."""
    if options.optimizer == "none":
        return "a smaller batch may fit: `graphc batch` finds the largest"
    if plan.state_bytes > memory.usable_bytes:
        return f"its states alone are {format_bytes(plan.state_bytes)}"
    budget = as_budget(memory.usable_bytes)
    asked: dict[str, Any] = {**dict.fromkeys(GOALS), "recompute": "optimal", "budget": budget}
    try:
        found = plan_from_arguments(options, **asked, dump=None)
    except BudgetError as error:
        return f"no budget fits: the least found is {format_bytes(error.least_bytes)}"
    extra = found.recomputation.extra_time_fraction
    return f"--budget {budget}{_in_place(options)} fits, with {extra:+.1%} time"


def _in_place(options: argparse.Namespace) -> str:
    """Return a phrase with the given options that a budget replaces."""
    given = [f"--{goal.replace('_', '-')}" for goal in GOALS if getattr(options, goal, None)]
    if getattr(options, "recompute", None) not in (None, "none", "optimal"):
        given.append(f"--recompute {options.recompute}")
    given = [name for name in given if name != "--budget"]
    return f" in place of {' and '.join(given)}" if given else ""
