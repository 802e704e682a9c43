"""Advice on a plan: if it fits its device, a budget that fits, and options that lower its arena."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphc.byte_sizes import format_bytes
from graphc.cli.models import setting
from graphc.cli.plans import plan_from_arguments
from graphc.cli.terminal import WIDTH
from graphc.compiler.options import GOALS
from graphc.devices.device_memory import GIB, MIB, DeviceMemory
from graphc.errors import BudgetError, GraphcError
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report
from graphc.runtime.memory import memory_of

POLICIES: tuple[dict[str, Any], ...] = (
    {"recompute": "sublinear"},
    {"recompute": "recursive"},
    {"recompute": "cheap"},
    {"recompute": "optimal", "max_extra_flops": 0.33},
)
"""Policies that may lower a peak, in the order in which they are tried."""

SEARCH = 10
"""Planning with a budget or another goal takes at least this many times as long as without."""

WORK = 3_000
"""Limit on the total nodes of alternative plans, so that making them takes no longer than the plan
itself."""

HEADING = "What lowers the arena, with the time that it adds by the cost model:"

MOST = 3
"""Number of changes that are printed with a plan."""


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
    """Return a hint on how to make a plan fit its device; None if none is needed or possible.

    None is returned if the plan fits, or if the memory of the device is unknown. Finding the hint
    plans with a budget, which may take longer than the plan itself.
    """
    memory = memory_of(plan.device)
    if memory is None or memory.spare_bytes(plan.arena_bytes) >= 0:
        return None
    return _cure(memory, plan, options)


def fit_line(plans: Sequence[tuple[str, MemoryPlan]], options: argparse.Namespace | None) -> str:
    """Return a line with the number of plans that fit, and the fastest of these."""
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
    """Return a line about plans for several devices: how many fit, and the names of the others.

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


def as_budget(size: int) -> str:
    """Format a number of bytes as a value of `--budget`, rounded down to two decimals."""
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    return f"{100 * size // unit / 100:.2f}{name}"


def place(memory: DeviceMemory) -> str:
    """Return a name for the device with this memory, for use in a sentence."""
    return "this machine" if memory.name == "cpu" else memory.name


def _told(plan: MemoryPlan) -> str:
    return format_bytes(plan.arena_bytes)


def _of(plan: MemoryPlan, memory: DeviceMemory) -> str:
    return f"{_told(plan)} of {format_bytes(memory.usable_bytes)}"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, break_on_hyphens=False, break_long_words=False)


def _cure(memory: DeviceMemory, plan: MemoryPlan, options: argparse.Namespace) -> str:
    """Return a budget with which a plan fits and its cost in time, or why no budget does."""
    if options.optimizer == "none":
        return "a smaller batch may fit: `graphc batch` finds the largest"
    if plan.state_bytes > memory.usable_bytes:
        return f"its states alone are {format_bytes(plan.state_bytes)}"
    budget = as_budget(memory.usable_bytes)
    asked: dict[str, Any] = {**dict.fromkeys(GOALS), "recompute": "optimal", "budget": budget}
    try:
        found = plan_from_arguments(options, **asked, dump=None)
    except BudgetError as error:
        return f"no budget fits: the least found is {format_bytes(error.least_bytes, up=True)}"
    extra = found.recomputation.extra_time_fraction
    return f"--budget {budget}{_in_place(options)} fits, with {extra:+.1%} time"


def _in_place(options: argparse.Namespace) -> str:
    """Return a phrase that names the given options that a budget would replace."""
    given = [f"--{goal.replace('_', '-')}" for goal in GOALS if getattr(options, goal, None)]
    if getattr(options, "recompute", None) not in (None, "none", "optimal"):
        given.append(f"--recompute {options.recompute}")
    given = [name for name in given if name != "--budget"]
    return f" in place of {' and '.join(given)}" if given else ""


@dataclass(frozen=True)
class Change:
    """A change of options that saves bytes.

    `extra_time_fraction` is the time it adds, relative to the step. It is None for a smaller batch,
    whose step computes something else.
    """

    how: str
    arena_bytes: int
    saved_bytes: int
    extra_time_fraction: float | None

    @property
    def seconds_per_byte(self) -> float:
        """The added time per saved byte, as a fraction of a step; infinite for a smaller batch."""
        extra = self.extra_time_fraction
        return math.inf if extra is None else max(extra, 0.0) / self.saved_bytes

    def __str__(self) -> str:
        extra = self.extra_time_fraction
        is_told = extra is not None and abs(extra) >= 0.0005
        time = f", {extra:+.1%} time" if is_told else ""
        saved = format_bytes(self.saved_bytes)
        return f"{format_bytes(self.arena_bytes)}, {saved} less{time}: {self.how}"


@dataclass(frozen=True)
class Lowering:
    """The changes that lower an arena, sorted by added time per saved byte.

    `tried` and `left_out` name the changes that were and were not tried.
    """

    changes: Sequence[Change]
    tried: Sequence[str]
    left_out: Sequence[str]

    def told(self, most: int | None = None) -> list[str]:
        """Return the lines to print, with the first `most` changes or all."""
        lines = [f"  {change}" for change in self.changes[:most]]
        return [*([HEADING, *lines] if lines else []), *self.beside()]

    def beside(self) -> Iterator[str]:
        """Yield sentences about changes that were not tried, and about a lack of useful ones."""
        if self.tried and not self.changes:
            yield f"The arena is not lowered by {', '.join(self.tried)}."
        if self.left_out:
            yield (
                f"Not tried, as it takes longer: {', '.join(self.left_out)}; "
                "`graphc explain --peak` tries all."
            )


class Alternatives:
    """Plans with changed options, for advice on the plan of a command.

    Each plan is made once. `work` limits the total number of their nodes.
    """

    def __init__(self, options: argparse.Namespace, work: int | None = WORK) -> None:
        self._options, self._work = options, work
        self._known: dict[tuple[object, ...], MemoryPlan] = {}

    def know(self, plan: MemoryPlan, **strategy: Any) -> None:
        """Record a plan that exists already; `strategy` has the options in which it differs."""
        self._known[self._key(strategy)] = plan

    def lowering(self, plan: MemoryPlan, share: float = 1.0, **strategy: Any) -> Lowering:
        """Return the changes of options that lower a plan's arena.

        Trying them takes at most a fraction `share` of the work limit. `strategy` has the options
        of this plan that differ from those of the command.
        """
        left = None if self._work is None else self._work * share
        changes, tried, left_out = [], [], []
        for how, differing, is_same_step in self._all(plan, strategy):
            changed = {**strategy, **differing}
            work = 0 if self._key(changed) in self._known else self._nodes(plan, changed)
            if left is not None and work > left:
                left_out.append(how)
                continue
            other = self._plan(how, changed)
            if other is None:
                continue
            left = None if left is None else left - work
            tried.append(how)
            if other.arena_bytes < plan.arena_bytes:
                changes.append(_change(plan, other, how, is_same_step))
        changes.sort(key=lambda change: (change.seconds_per_byte, change.arena_bytes))
        return Lowering(changes, tried, left_out)

    def _all(
        self, plan: MemoryPlan, strategy: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any], bool]]:
        """Yield each possible change: its text, its options, and True if the step stays the same.

        The changes are better placement, reordering, no slots, a smaller batch, and recomputation.
        """
        options = self._options
        if plan.allocate != "packed":
            yield "--allocate packed", {"allocate": "packed"}, True
        if not options.reorder:
            yield "leaving out --keep-order", {"reorder": True}, True
        if options.overlap_copies:
            yield "leaving out --overlap-copies", {"overlap_copies": False}, True
        batch, goals = setting(options.model, options.settings, "batch"), self._goals(strategy)
        # With a budget, a plan takes about that many bytes for any batch.
        if isinstance(batch, int) and batch > 1 and "budget" not in goals:
            others = [e for e in options.settings if not e.startswith("batch=")]
            smaller = {"settings": [*others, f"batch={batch // 2}"]}
            yield f"batch={batch // 2}, half of it", smaller, False
        if options.optimizer != "none" and not goals:
            for policy in POLICIES:
                if policy["recompute"] != plan.recompute:
                    name, value = list(policy.items())[-1]  # a goal implies its policy
                    yield f"--{name.replace('_', '-')} {value}", policy, True

    def _goals(self, strategy: dict[str, Any]) -> list[str]:
        given = {**vars(self._options), **strategy}
        return [goal for goal in GOALS if given.get(goal) is not None]

    def _nodes(self, plan: MemoryPlan, strategy: dict[str, Any]) -> int:
        return len(plan.graph.nodes) * (SEARCH if self._goals(strategy) else 1)

    def _plan(self, how: str, strategy: dict[str, Any]) -> MemoryPlan | None:
        """Return the plan with changed options; None if planning raises an error."""
        key = self._key(strategy)
        if key not in self._known:
            report(f"what would lower the arena: {how}")
            changed = dict(strategy)
            settings = changed.pop("settings", self._options.settings)
            given = argparse.Namespace(**{**vars(self._options), "settings": settings})
            try:
                self._known[key] = plan_from_arguments(given, **changed, dump=None)
            except GraphcError:
                return None
        return self._known[key]

    def _key(self, strategy: dict[str, Any]) -> tuple[object, ...]:
        names = ("allocate", "recompute", "reorder", "overlap_copies", *GOALS, "settings")
        given = {**vars(self._options), **strategy}
        return tuple(repr(given.get(name)) for name in names)


def _change(plan: MemoryPlan, other: MemoryPlan, how: str, is_same_step: bool) -> Change:
    extra = other.recomputation.extra_time_fraction - plan.recomputation.extra_time_fraction
    saved = plan.arena_bytes - other.arena_bytes
    return Change(how, other.arena_bytes, saved, extra if is_same_step else None)
