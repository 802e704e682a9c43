"""Suggestions to lower the arena: other plans of the same model, with their bytes and time."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphc.cli.models import setting
from graphc.errors import GraphcError
from graphc.ir.types import format_bytes
from graphc.options import GOALS
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report

POLICIES: tuple[dict[str, Any], ...] = (
    {"recompute": "sublinear"},
    {"recompute": "recursive"},
    {"recompute": "cheap"},
    {"recompute": "optimal", "max_extra_flops": 0.33},
)
"""Policies that may lower a peak, in the order in which they are tried."""

SEARCH = 10
"""A search for a goal takes at least this many times as long as another plan."""

WORK = 3_000
"""Limit on the nodes of alternative plans, so that they take no longer than the plan itself."""

HEADING = "What lowers the arena, with the time that it adds by the cost model:"

MOST = 3
"""Number of changes printed with a plan."""

Make = Callable[..., MemoryPlan]
"""A function that plans by a command's options; keywords override these."""


@dataclass(frozen=True)
class Change:
    """A change of options that saves bytes.

    `extra_time_fraction` is the time it adds, relative to the step. It is None if the step itself
    differs, with a smaller batch.
    """

    how: str
    arena_bytes: int
    saved_bytes: int
    extra_time_fraction: float | None

    @property
    def seconds_per_byte(self) -> float:
        """The added fraction of a step per saved byte; infinite if the step itself differs."""
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
    """Changes that lower an arena, by added time per saved byte; names of those (not) tried."""

    changes: Sequence[Change]
    tried: Sequence[str]
    left_out: Sequence[str]

    def told(self, most: int | None = None) -> list[str]:
        """Return lines with the first `most` changes, by default with all."""
        lines = [f"  {change}" for change in self.changes[:most]]
        return [*([HEADING, *lines] if lines else []), *self.beside()]

    def beside(self) -> Iterator[str]:
        """Yield sentences on changes that were not tried, and on tried ones if none saves bytes."""
        if self.tried and not self.changes:
            yield f"The arena is not lowered by {', '.join(self.tried)}."
        if self.left_out:
            yield (
                f"Not tried, as it takes longer: {', '.join(self.left_out)}; "
                "`graphc explain --peak` tries all."
            )


class Alternatives:
    """A cache of alternative plans for one command, within a limit on nodes."""

    def __init__(self, options: argparse.Namespace, make: Make, work: int | None = WORK) -> None:
        self._options, self._make, self._work = options, make, work
        self._known: dict[tuple[object, ...], MemoryPlan] = {}

    def know(self, plan: MemoryPlan, **strategy: Any) -> None:
        """Record an existing plan under the options in which it differs."""
        self._known[self._key(strategy)] = plan

    def lowering(self, plan: MemoryPlan, share: float = 1.0, **strategy: Any) -> Lowering:
        """Return the changes that lower a plan's arena, within a share of the work.

        `strategy` has the options of this plan that differ from those of the command.
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
        """Yield changes as their text, their keywords, and a flag: True if the step is the same.

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
        """Return the plan; None if a budget or the user's model raises an error."""
        key = self._key(strategy)
        if key not in self._known:
            report(f"what would lower the arena: {how}")
            changed = dict(strategy)
            settings = changed.pop("settings", self._options.settings)
            given = argparse.Namespace(**{**vars(self._options), "settings": settings})
            try:
                self._known[key] = self._make(given, **changed, dump=None)
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
