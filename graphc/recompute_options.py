"""Options that select what is recomputed, or copied to host memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from graphc.byte_sizes import parse_bytes
from graphc.errors import OptionError
from graphc.keywords import Flag, Options, option
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import RECOMPUTE, Recompute

HostStates = Literal["none", "moments"]
HOST_STATES: tuple[HostStates, ...] = ("none", "moments")


def _check_part_of_flops(name: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise OptionError(
            f"{name} must be a fraction of a step's flops of at least 0, such as 0.33, got "
            f"{given!r}"
        )


@dataclass(frozen=True, kw_only=True)
class HostOptions(Options):
    """The options of host memory."""

    host_budget: int | str | None = option(
        None,
        'The limit of host memory, in bytes or as ``"64GiB"``. With `budget`, values are copied '
        "there and back within this limit, instead of being recomputed; None copies no values. It "
        "also limits `host_states`, whose bytes count first.",
        check=parse_bytes,
        flag=Flag(
            "limit of host memory, such as 64GiB; with --budget, also for copies of values",
            metavar="B",
        ),
    )
    host_states: HostStates = option(
        "none",
        "The states that are in host memory between steps, one of {choices}. ``moments`` are those "
        "of the optimizer, of at least 64 KiB each: a step copies each to the device for its "
        "update, and back, while other nodes run. Results do not change. Parameters stay on the "
        "device. Without such moments, this is an error. See docs/offload.md.",
        choices=HOST_STATES,
        flag=Flag(
            "states in host memory between steps: {choices} (default: {default})", metavar="S"
        ),
    )

    @cached_property
    def host_bytes(self) -> int | None:
        """The limit of host memory in bytes, or None."""
        return None if self.host_budget is None else parse_bytes("host_budget", self.host_budget)


@dataclass(frozen=True, kw_only=True)
class RecomputeOptions(HostOptions):
    """Options that select what is recomputed."""

    recompute: Recompute | None = option(
        None,
        "The recomputation policy, one of {choices}, by default ``none``. ``mirror`` recomputes "
        "nodes marked by `graphc.mirror`; ``cheap`` all except products; ``segments`` the inner "
        "values of each `graphc.segment` (Alg. 1). ``sublinear`` (Alg. 3) saves about the square "
        "root of the feature maps for one extra forward pass; ``recursive`` saves about their "
        "logarithm for several. ``optimal`` meets one of the next three options, each of which "
        "implies it; without them, it chooses the knee of the curve of bytes against time.",
        choices=RECOMPUTE,
        flag=Flag("{choices} (default: {default})", metavar="P", unset="none"),
    )
    budget: int | str | None = option(
        None,
        'The limit of the whole arena, in bytes or as ``"7GiB"``; minimizes the time within it.',
        check=parse_bytes,
        flag=Flag("limit of the whole arena, such as 7GiB; minimizes time", metavar="B"),
    )
    feature_map_budget: int | str | None = option(
        None,
        "The limit of the paper's measure, in bytes; minimizes the time within it.",
        check=parse_bytes,
        flag=Flag("limit of the paper's measure of bytes; minimizes time", metavar="B"),
    )
    max_extra_flops: float | None = option(
        None,
        "The limit of recomputed flops, as a fraction of a step; minimizes the bytes within it.",
        check=_check_part_of_flops,
        flag=Flag(
            "limit of recomputed flops, such as 0.33 of a step; minimizes bytes",
            metavar="F",
            parse=float,
        ),
    )

    def check(self) -> None:
        """Check each option, and that at most one option determines what is recomputed."""
        super().check()
        given = self._given_goals
        if self.host_budget is not None and self.budget is None and self.host_states == "none":
            raise OptionError(
                "host_budget applies only with a budget of the arena or with host_states; give one "
                "of them"
            )
        if len(given) > 1:
            raise OptionError(
                f"give only one of {' and '.join(given)}; each of them determines the plan"
            )
        if given and self.recompute not in (None, "optimal"):
            raise OptionError(
                f"a budget determines what is recomputed; omit recompute={self.recompute!r} or "
                f"{given[0]}"
            )

    @property
    def _given_goals(self) -> list[str]:
        return [name for name in GOALS if getattr(self, name) is not None]

    @cached_property
    def goal(self) -> Goal | None:
        """The goal of the plan; None if no option of `GOALS` is given."""
        if self.max_extra_flops is not None:
            return Goal(max_extra_flops=float(self.max_extra_flops))
        for name in self._given_goals:
            limit = parse_bytes(name, getattr(self, name))
            return Goal(**{name: limit}, host_budget=self.host_bytes or None)
        return None

    @property
    def policy(self) -> Recompute:
        """The recomputation policy: a goal implies ``optimal``."""
        return (self.recompute or "none") if self.goal is None else "optimal"


GOALS = ("budget", "feature_map_budget", "max_extra_flops")
"""The options that set the goal of a plan."""
