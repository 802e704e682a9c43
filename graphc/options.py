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

from graphc.devices.device import (
    ADA,
    ALIGNMENT,
    AMPERE,
    DEVICES,
    KERNELS,
    Device,
    Kernels,
    find_device,
    planned_device,
    profiles,
    profiles_with_memory,
)
from graphc.errors import OptionError, whole_number
from graphc.ir.graph import Value
from graphc.keywords import Flag, Options, now_required, option
from graphc.optim import Optimizer
from graphc.optim.rates import check_elementwise
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs, load_costs
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import (
    ALLOCATE,
    Allocate,
    Recompute,
    check_alignment,
)
from graphc.plans.streams import MOST_STREAMS
from graphc.recompute_options import HostOptions, RecomputeOptions
from graphc.step_options import NetworkOptions, StepOptions, true_false_or_none
from graphc.target import Target, target_of

AUTO = "auto"
"""The device name for the GPU of this machine, or its CPU if there is none."""


@dataclass(frozen=True, kw_only=True)
class PlacementOptions(Options):
    """Options of layout, node order, and the cost model."""

    allocate: Allocate = option(
        "packed",
        "The allocation strategy, which determines how values share bytes; one of {choices}.",
        choices=ALLOCATE,
        flag=Flag("{choices} (default: {default})", metavar="A"),
    )
    alignment: int = option(
        ALIGNMENT,
        "The alignment of all offsets in bytes, a power of two of at least 16.",
        check=lambda _, given: check_alignment(given),
    )
    costs: Costs | None = option(
        None,
        "Node times measured by `graphc profile`. Without them, the cost model uses flops, bytes "
        "and the peak rates of the device.",
        flag=Flag("plan with node times measured by `graphc profile`", metavar="FILE"),
    )
    roofline: str | None = option(
        None,
        "The device whose peak rates the cost model uses, one of {choices}; by default the "
        "device of the plan.",
        choices=tuple(DEVICES),
        check=lambda _, given: find_device(given),
        flag=Flag("peak rates of the cost model: {choices} (default: the device)", metavar="NAME"),
    )
    reorder: bool = option(
        True,
        "Reorder nodes to reduce the arena, without changing results. Without it, and for all "
        "strategies except ``packed``, nodes run in the order of the paper.",
        flag=Flag(
            "run nodes in the order of their creation, even if another order needs fewer bytes",
            action="store_false",
            name="--keep-order",
        ),
    )
    kernels: Kernels = option(
        "native",
        "The kernels on a CPU, one of {choices}: ``native`` is machine code; ``numpy`` is the "
        "reference, which is slower and needs different scratch.",
        choices=KERNELS,
        flag=Flag("kernels on a CPU: {choices} (default: {default})", metavar="K"),
    )
    fuse: bool | None = option(
        None,
        "Fuse groups of elementwise nodes into one kernel each, without changing results. None "
        "fuses unless the kernels are NumPy's.",
        check=true_false_or_none,
        flag=Flag(
            "fuse elementwise nodes, one kernel per group (default: unless kernels are NumPy's)",
            action=argparse.BooleanOptionalAction,
        ),
    )
    streams: int = option(
        1,
        "The number of streams. Nodes without dependences run concurrently on a GPU, and "
        "sequentially on a CPU. Values that may be live concurrently get separate bytes within "
        "``budget``; without a budget, the arena is no larger than for one stream.",
        check=partial(whole_number, most=MOST_STREAMS),
        flag=Flag(
            "number of concurrent streams; --budget limits their bytes (default: {default})",
            metavar="K",
            parse=int,
        ),
    )
    overlap_copies: bool = option(
        False,
        "On a GPU, give inputs a second slot in the arena, so that `Program.steps` copies the "
        "next batch during a step. If no state changes, outputs also get a slot and are copied "
        "out during the next step.",
        flag=Flag("on a GPU: arena slots to copy feeds during a step", action="store_true"),
    )


@dataclass(frozen=True)
class PlanningOptions(HostOptions, PlacementOptions, StepOptions, NetworkOptions):
    """The options of plans of a network that do not depend on what is recomputed."""

    _: KW_ONLY
    device: str | Device = option(
        "cpu",
        "The target device: ``cpu``, ``cuda``, ``auto`` (a GPU if there is one), or a device "
        "profile or its name, one of {choices}, or the memory of a GPU, such as ``16GB``. Planning "
        "for a GPU needs no GPU: ``cuda`` is the GPU named by `roofline`, by default an H200.",
        choices=profiles(),
        check=lambda _, given: None,  # by `check` of all options, which knows the roofline
        flag=Flag(
            f"cpu, {profiles_with_memory()}, a memory such as 16GB (the smallest such GPU), "
            "cuda (the GPU named by --roofline, by default h200), or auto: a GPU if there is one "
            "(default: {default})",
            metavar="D",
        ),
    )

    def check(self) -> None:
        """Check that the options fit training or inference, and the capabilities of the device.

        Capabilities are not checked for the device ``auto``.
        """
        super().check()
        if self.optimizer is None and (self.clip_norm is not None or self.accumulate != 1):
            raise OptionError("clip_norm and accumulate apply only to training; give an optimizer")
        if self.optimizer is None and self.ranks != 1:
            raise OptionError("ranks applies only to training; give an optimizer")
        if self.optimizer is None and self.sync_norm:
            raise OptionError("sync_norm applies only to training; give an optimizer")
        if self.shard != "none":
            if self.trained_by is None:
                raise OptionError("shard applies only to training; give an optimizer")
            check_elementwise(self.trained_by)
        if self.ranks > 1 and self.streams > 1:
            raise OptionError(
                "a step of several ranks supports only one stream besides communication; omit "
                "streams or ranks"
            )
        if self.optimizer is None and self.has_host_states:
            raise OptionError("host_states applies only to training; give an optimizer")
        self._check_host()
        if self.optimizer is None and self.chunk_losses:
            raise OptionError("chunk_losses applies only to training; give an optimizer")
        if self.device == AUTO:
            return
        if self.alignment % self.target.least_alignment:
            least = self.target.least_alignment
            raise OptionError(
                f"alignment on a GPU must be a multiple of {least}, which cuBLAS requires of its "
                f"workspaces, got {self.alignment}"
            )
        if self.planned_for.kind == "cuda" and self.kernels == "numpy":
            raise OptionError("NumPy kernels run only on the CPU; omit kernels='numpy'")
        if self.planned_for.kind == "cpu" and self.precision == "tf32":
            raise OptionError("tf32 products require a GPU; choose precision='fp32' on the CPU")
        gpu = self.planned_for
        if gpu.kind == "cuda" and self.precision == "fp8" and not gpu.has_float8:
            raise OptionError(
                f"{gpu.name} is sm_{gpu.architecture}, whose tensor cores do not multiply 8-bit "
                f"floats; choose a GPU from sm_{ADA} on, such as h100, or precision="
                f"{'bf16' if gpu.architecture >= AMPERE else 'fp16'!r}"
            )
        if self.planned_for.kind == "cpu" and self.overlap_copies:
            raise OptionError("overlap_copies requires a GPU; omit it on the CPU")
        _ = self.cost_model  # reads its file

    def _check_host(self) -> None:
        """Check that the other options permit copies to the host, if there are any."""
        given = {"host_budget": self.host_budget is not None, "host_states": self.has_host_states}
        refused = {
            "streams": self.streams > 1,
            "ranks": self.ranks > 1,
            "allocate": self.allocate == "none",
        }
        names = [name for name, is_given in given.items() if is_given]
        for name in (name for name, is_refused in refused.items() if names and is_refused):
            raise OptionError(
                f"copies to the host do not support {name}={getattr(self, name)!r}; omit {name} or "
                f"{' and '.join(names)}"
            )

    @property
    def has_host_states(self) -> bool:
        """True if states may be in host memory."""
        return self.host_states != "none"

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
        """True if nodes act as in training; None if they do so only with gradients as outputs."""
        return None if self.optimizer is None else True

    @property
    def recomputes(self) -> bool:
        """True if the plan may recompute values."""
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
        """The target, which describes the kernels of the device to planners."""
        return target_of(self.planned_for)

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model in seconds; raises `OptionError` for costs that cannot be read."""
        measured = None if self.costs is None else load_costs(self.costs)
        kernels = self.planned_for.kernels
        of = kernels if measured is None else measured.device.get("kernels", kernels)
        if of != kernels:
            raise OptionError(
                f"the costs were measured for {of} kernels, but the plan uses {kernels} kernels; "
                f"measure again, or choose kernels={of!r}"
            )
        peaks = find_device(self.roofline) if self.roofline else self.planned_for
        return CostModel(peaks, measured, self.precision == "tf32")

    @property
    def reorders(self) -> bool:
        """True if nodes may be reordered."""
        return self.reorder and self.allocate == "packed"

    @property
    def chunks_losses(self) -> bool:
        """True if a loss may be computed in chunks of rows."""
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
    optimizer: Optimizer | str = field(metadata=now_required(NetworkOptions, "optimizer"))

    def check(self) -> None:
        """Check all options, and that no streams are requested."""
        super().check()
        if self.streams > 1:
            raise OptionError(
                "a frontier supports only one stream; omit streams, and plan with a budget to "
                "see the bytes of more streams"
            )


@dataclass(frozen=True)
class PlanOptions(RecomputeOptions, PlanningOptions):
    """The options of one plan."""

    _: KW_ONLY
    training: bool | None = option(
        None,
        "Use batch statistics in batch norm, and apply dropout. By default True if there is an "
        "optimizer or a gradient among the outputs.",
        check=true_false_or_none,
    )
    dump: str | os.PathLike[str] | None = option(
        None,
        "A folder to which to write the graph after every pass.",
        flag=Flag("write the graph after every pass", metavar="DIR"),
    )

    def check(self) -> None:
        """Check all options, and that budgets and recomputation are used only for training."""
        super().check()
        if self.goal is not None and self.optimizer is None and not self._budget_is_for_width:
            raise OptionError("budgets require a training step; give an optimizer")
        if self.policy != "none" and self.optimizer is None:
            raise OptionError(
                "recomputation requires a training step; give an optimizer, or omit "
                f"recompute={self.policy!r}"
            )

    @property
    def policy(self) -> Recompute:
        """The recomputation policy: a goal implies ``optimal`` in training."""
        return "none" if self._budget_is_for_width else super().policy

    @property
    def _budget_is_for_width(self) -> bool:
        """True if the budget limits only a stream schedule, because the step does not train."""
        return self.optimizer is None and self.streams > 1 and self.budget is not None

    @property
    def mode(self) -> bool | None:
        """True if nodes act as in training, False if not; None if gradients as outputs decide."""
        return super().mode if self.training is None else self.training
