"""Options of a plan: each option is declared once, with its meaning and its check.

`graphc.compile`, `graphc.plan` and `graphc.frontier`, the command line and a training run's
`Recipe` take their options from these classes. Options of a step are in `graphc.step_options`,
those of a run in `graphc.runtime.options`. Each class checks its options separately and together
when an object is created.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial

from graphc.errors import OptionError, whole_number
from graphc.ir.device import (
    ALIGNMENT,
    DEVICES,
    KERNELS,
    Device,
    Kernels,
    find_device,
    planned_device,
    profiles,
)
from graphc.ir.graph import Value
from graphc.ir.types import parse_bytes
from graphc.keywords import Flag, Options, now_required, option
from graphc.optim import Optimizer
from graphc.optim.rates import check_elementwise
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs, load_costs
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import (
    ALLOCATE,
    RECOMPUTE,
    Allocate,
    Recompute,
    check_alignment,
)
from graphc.plans.streams import MOST_STREAMS
from graphc.step_options import NetworkOptions, StepOptions, true_false_or_none
from graphc.target import Target, target_of

AUTO = "auto"
"""The device name for the GPU of this machine, or its CPU if there is none."""


def _check_part_of_flops(name: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise OptionError(
            f"{name} is a part of a step's flops from 0 up, such as 0.33, got {given!r}"
        )


@dataclass(frozen=True, kw_only=True)
class PlacementOptions(Options):
    """Options of layout, node order, and the cost model."""

    allocate: Allocate = option(
        "packed",
        "How values share bytes, one of {choices}.",
        choices=ALLOCATE,
        flag=Flag("{choices} (default: {default})", metavar="A"),
    )
    alignment: int = option(
        ALIGNMENT,
        "Offsets are multiples of so many bytes, a power of two from 16 up.",
        check=lambda _, given: check_alignment(given),
    )
    costs: Costs | None = option(
        None,
        "Times that `graphc profile` has measured, from which follows what a node costs in "
        "seconds; without them it follows from flops, bytes and the device's peaks.",
        flag=Flag("use op times measured by `graphc profile`", metavar="FILE"),
    )
    roofline: str | None = option(
        None,
        "The device whose peaks give times, one of {choices}; by default that of the plan.",
        choices=tuple(DEVICES),
        check=lambda _, given: find_device(given),
        flag=Flag(
            "peak rates for modeled times: {choices} (default: the device's)", metavar="NAME"
        ),
    )
    reorder: bool = option(
        True,
        "Let nodes run in an order that lowers the arena and changes no bit; without it, and under "
        "all strategies but ``packed``, they run in the order of the paper.",
        flag=Flag(
            "keep the given node order, even if another one has a lower peak",
            action="store_false",
            name="--keep-order",
        ),
    )
    kernels: Kernels = option(
        "native",
        "What runs nodes on a CPU, one of {choices}: ``native`` is machine code, ``numpy`` the "
        "reference, which is slower and needs other scratch.",
        choices=KERNELS,
        flag=Flag("on a CPU: {choices} (default: {default})", metavar="K"),
    )
    fuse: bool | None = option(
        None,
        "Make groups of elementwise nodes one kernel each, which changes no bit; None does so "
        "unless the kernels are NumPy's.",
        check=true_false_or_none,
        flag=Flag(
            "fuse elementwise nodes (default: unless kernels are NumPy's)",
            action=argparse.BooleanOptionalAction,
        ),
    )
    streams: int = option(
        1,
        "Nodes run on so many streams, side by side where none writes what another one touches; "
        "on a CPU one after another all the same. Values that may be alive together lie apart as "
        "far as ``budget`` has room; without a budget the arena takes no more bytes than on one "
        "stream.",
        check=partial(whole_number, most=MOST_STREAMS),
        flag=Flag(
            "streams for concurrent nodes; --budget sets the bytes for it (default: {default})",
            metavar="K",
            parse=int,
        ),
    )
    overlap_copies: bool = option(
        False,
        "On a GPU give inputs a second slot in the arena, so that `Program.steps` copies the next "
        "batch while a step runs; where no state changes outputs, too, which leave during the "
        "next step.",
        flag=Flag(
            "on a GPU: copy feeds during the previous step, to slots of the arena",
            action="store_true",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class RecomputeOptions(Options):
    """Options that select what is recomputed."""

    recompute: Recompute | None = option(
        None,
        "What is computed again instead of kept, one of {choices}, by default ``none``: "
        "``mirror`` what `graphc.mirror` marks; ``cheap`` all but products; ``segments`` what "
        "stays inside a `graphc.segment` (Alg. 1); ``sublinear`` (Alg. 3), about the square root "
        "of the feature maps for one more forward pass; ``recursive``, about their logarithm for "
        "several; "
        "``optimal``, what one of the next three options asks for, each of which implies it, or "
        "without any the knee of the curve of bytes against time.",
        choices=RECOMPUTE,
        flag=Flag("{choices} (default: {default})", metavar="P", unset="none"),
    )
    budget: int | str | None = option(
        None,
        'Bytes of the whole arena, a number or ``"7GiB"``: the least time within it.',
        check=parse_bytes,
        flag=Flag("bytes of the whole arena, such as 7GiB: least time within it", metavar="B"),
    )
    feature_map_budget: int | str | None = option(
        None,
        "Bytes of the paper's measure: the least time within it.",
        check=parse_bytes,
        flag=Flag("the same for the paper's measure of bytes", metavar="B"),
    )
    max_extra_flops: float | None = option(
        None,
        "Part of a step's flops that may be computed again: the fewest bytes within it.",
        check=_check_part_of_flops,
        flag=Flag(
            "fewest bytes with at most this fraction of extra flops, such as 0.33",
            metavar="F",
            parse=float,
        ),
    )

    def check(self) -> None:
        """Check each option, and that at most one of them decides the plan."""
        super().check()
        given = self._given_goals
        if len(given) > 1:
            raise OptionError(f"give one of {' and '.join(given)}, not both: each decides a plan")
        if given and self.recompute not in (None, "optimal"):
            raise OptionError(
                f"a budget decides what is recomputed; leave out {self.recompute!r}, or {given[0]}"
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
            return Goal(**{name: parse_bytes(name, getattr(self, name))})
        return None

    @property
    def policy(self) -> Recompute:
        """The recomputation policy: a goal implies ``optimal``."""
        return (self.recompute or "none") if self.goal is None else "optimal"


GOALS = ("budget", "feature_map_budget", "max_extra_flops")
"""The options that set the goal of a plan."""


@dataclass(frozen=True)
class PlanningOptions(PlacementOptions, StepOptions, NetworkOptions):
    """The options of every plan of a network, whatever it recomputes."""

    _: KW_ONLY
    device: str | Device = option(
        "cpu",
        "The device of the plan: ``cpu``, ``cuda``, ``auto``, a GPU if there is one, or a device "
        "profile or its name, one of {choices}. No GPU is needed to plan for one: ``cuda`` is the "
        "GPU that `roofline` names, by default an H200.",
        choices=profiles(),
        check=lambda _, given: None,  # by `check` of all options, which knows the roofline
        flag=Flag(
            "cpu, {choices}, cuda (the GPU that --roofline names, h200 if none), or auto: a GPU "
            "where there is one (default: {default})",
            metavar="D",
        ),
    )

    def check(self) -> None:
        """Check also the needs of training and, unless the device is ``auto``, its capabilities."""
        super().check()
        if self.optimizer is None and (self.clip_norm is not None or self.accumulate != 1):
            raise OptionError("clip_norm and accumulate belong to training; give an optimizer")
        if self.optimizer is None and self.ranks != 1:
            raise OptionError("ranks belong to training; give an optimizer")
        if self.optimizer is None and self.sync_norm:
            raise OptionError("sync_norm belongs to training; give an optimizer")
        if self.shard != "none":
            if self.optimizer is None:
                raise OptionError("shard belongs to training; give an optimizer")
            check_elementwise(self.optimizer)
        if self.ranks > 1 and self.streams > 1:
            raise OptionError(
                "a step of several ranks runs on one stream beside its communication; leave out "
                "streams, or ranks"
            )
        if self.optimizer is None and self.chunk_losses:
            raise OptionError("chunk_losses belongs to training; give an optimizer")
        if self.device == AUTO:
            return
        if self.alignment % self.target.least_alignment:
            least = self.target.least_alignment
            raise OptionError(
                f"on a GPU alignment is a multiple of {least}, as cuBLAS asks of its workspaces, "
                f"got {self.alignment}"
            )
        if self.planned_for.kind == "cuda" and self.kernels == "numpy":
            raise OptionError("NumPy's kernels are for the CPU; leave out kernels='numpy'")
        if self.planned_for.kind == "cpu" and self.precision == "tf32":
            raise OptionError("tf32 products are for GPUs; choose precision fp32 on the CPU")
        if self.planned_for.kind == "cpu" and self.overlap_copies:
            raise OptionError(
                "only a GPU has copies that overlap with a step; leave out overlap_copies"
            )
        _ = self.cost_model  # reads its file

    @property
    def goal(self) -> Goal | None:
        """The goal of the plan: none, unless a subclass has options for it."""
        return None

    @property
    def policy(self) -> Recompute:
        """The recomputation policy, by default a search for the best."""
        return "optimal"

    @property
    def mode(self) -> bool | None:
        """True if nodes act as in training; None if a gradient among the outputs decides."""
        return None if self.optimizer is None else True

    @property
    def recomputes(self) -> bool:
        """True if anything may be recomputed."""
        return self.policy != "none"

    @property
    def trains(self) -> bool:
        """True if a step updates parameters."""
        return self.optimizer is not None

    @cached_property
    def planned_for(self) -> Device:
        """The profile of the device; raises `OptionError` for unknown names."""
        return planned_device(self.device, self.roofline, self.kernels)

    @cached_property
    def target(self) -> Target:
        """The target passed to the planners."""
        return target_of(self.planned_for)

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model in seconds; raises `OptionError` for costs that cannot be read."""
        measured = None if self.costs is None else load_costs(self.costs)
        kernels = self.planned_for.kernels
        of = kernels if measured is None else measured.device.get("kernels", kernels)
        if of != kernels:
            raise OptionError(
                f"the costs are of {of} kernels, and the plan is for {kernels} ones; measure them "
                f"anew, or choose kernels={of!r}"
            )
        peaks = find_device(self.roofline) if self.roofline else self.planned_for
        return CostModel(peaks, measured, self.precision == "tf32")

    @property
    def reorders(self) -> bool:
        """True if nodes may be reordered."""
        return self.reorder and self.allocate == "packed"

    @property
    def chunks_losses(self) -> bool:
        """True if a loss may be computed by parts of its rows."""
        asked = self.target.chunks_losses if self.chunk_losses is None else self.chunk_losses
        return self.trains and asked

    @property
    def fuses(self) -> bool:
        """True if groups of elementwise nodes are fused."""
        return self.target.fuses if self.fuse is None else self.fuse


@dataclass(frozen=True)
class FrontierOptions(PlanningOptions):
    """The options of `frontier`, which makes plans for all budgets."""

    loss: Value = field(metadata=now_required(NetworkOptions, "loss"))
    _: KW_ONLY
    optimizer: Optimizer = field(metadata=now_required(NetworkOptions, "optimizer"))

    def check(self) -> None:
        """Check all options, and that no streams are requested."""
        super().check()
        if self.streams > 1:
            raise OptionError(
                "a frontier is that of one stream; leave out streams, and plan with a budget to "
                "see what width takes"
            )


@dataclass(frozen=True)
class PlanOptions(RecomputeOptions, PlanningOptions):
    """The options of one plan."""

    _: KW_ONLY
    training: bool | None = option(
        None,
        "Whether batch norm uses the batch's statistics and dropout drops; by default where there "
        "is an optimizer, or a gradient among the outputs.",
        check=true_false_or_none,
    )
    dump: str | os.PathLike[str] | None = option(
        None,
        "A folder for the graph after every pass.",
        flag=Flag("write the graph after every pass", metavar="DIR"),
    )

    def check(self) -> None:
        """Check all options, and that budgets and recomputation are used only for training."""
        super().check()
        if self.goal is not None and self.optimizer is None and not self._budget_is_for_width:
            raise OptionError("budgets are for training steps; give an optimizer")
        if self.policy != "none" and self.optimizer is None:
            raise OptionError(
                f"only training steps compute anything again; give an optimizer, or leave out "
                f"recompute={self.policy!r}"
            )

    @property
    def policy(self) -> Recompute:
        """The recomputation policy: a goal implies ``optimal`` in training."""
        return "none" if self._budget_is_for_width else super().policy

    @property
    def _budget_is_for_width(self) -> bool:
        """True if a budget only limits the bytes of a stream schedule: the step does not train."""
        return self.optimizer is None and self.streams > 1 and self.budget is not None

    @property
    def mode(self) -> bool | None:
        """True if nodes act as in training; None if a gradient among the outputs decides."""
        return super().mode if self.training is None else self.training
