"""Options of a plan: each option is declared once, with its meaning and its check.

`graphc.compile`, `graphc.plan` and `graphc.frontier`, the command line and a training run's
`Recipe` take their options from these classes: those of a network and of its step, which do not
depend on the plan, of recomputation, of placement, and of plans. Options of a run are in
`graphc.runtime.options`. Each class checks its options separately and together when an object is
created.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Literal, cast

from graphc.byte_sizes import parse_bytes
from graphc.devices.device import (
    ADA,
    ALIGNMENT,
    AMPERE,
    AUTO,
    DEVICES,
    KERNELS,
    Device,
    Kernels,
    find_device,
    planned_device,
    profiles,
    profiles_with_memory,
)
from graphc.errors import OptionError, choose, number_between, quoted, truth, whole_number
from graphc.ir.graph import Value
from graphc.keywords import Flag, Options, asks, now_required, option
from graphc.ops.collective import MOST_RANKS
from graphc.optim import LARGEST_FLOAT32, OPTIMIZERS, Optimizer
from graphc.optim.rates import check_elementwise, optimizer_of
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs, load_costs
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import (
    ALLOCATE,
    PRECISIONS,
    RECOMPUTE,
    Allocate,
    Precision,
    Recompute,
    check_alignment,
)
from graphc.plans.streams import MOST_STREAMS
from graphc.target import Target, target_of

SMALLEST_NORM = 1e-30

MOST_MICRO_BATCHES = 1024
"""The maximum number of micro-batches of a step. Each one adds its own nodes to the graph."""


def _micro_batches(name: str, given: object) -> None:
    if whole_number(name, given) > MOST_MICRO_BATCHES:
        raise OptionError(
            f"{name} must be at most {MOST_MICRO_BATCHES}, because each micro-batch adds nodes to "
            f"the graph, got {quoted(given)}"
        )


def check_precision(name: str, given: object) -> None:
    """Raise `OptionError` unless `given` is a precision; the names of dtypes get a hint."""
    dtypes = {PRECISIONS[precision]: precision for precision in ("fp32", "bf16", "fp16")}
    if isinstance(given, str) and given in dtypes:
        raise OptionError(f"unknown {name} {given!r}; did you mean {dtypes[given]}?")
    choose(name, cast(str, given), tuple(PRECISIONS))


true_false_or_none = partial(truth, beside=", or None")
"""A check for options that are True, False or None."""


@dataclass(frozen=True)
class NetworkOptions(Options):
    """The options of the computation of a step: loss, outputs and optimizer."""

    loss: Value | None = option(None, "The loss to minimize; an output named ``loss``.")
    _: KW_ONLY
    outputs: Sequence[Value] | Mapping[str, Value] = option(
        (),
        "Outputs other than the loss: a mapping, or a sequence, whose items are named "
        "``output0``, ``output1``, ...",
    )
    optimizer: Optimizer | str | None = option(
        None,
        "The optimizer of a training step, which computes the loss, its gradients and the "
        "updates of all trainable parameters: an object, or one of {choices}. Without one, a step "
        "only computes the outputs.",
        choices=tuple(OPTIMIZERS),
        check=optimizer_of,
    )

    @cached_property
    def trained_by(self) -> Optimizer | None:
        """The optimizer as an object; None if a step does not train."""
        return None if self.optimizer is None else optimizer_of("optimizer", self.optimizer)


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The options of the execution of a step: accumulation, ranks, precision and others."""

    clip_norm: float | None = option(
        None,
        "The maximum global norm of the gradients; larger gradients are scaled down together.",
        check=partial(number_between, low=SMALLEST_NORM, high=LARGEST_FLOAT32),
        flag=Flag(
            "maximum global norm of the gradients (default: {default})",
            metavar="C",
            unset="no limit",
            parse=float,
        ),
    )
    accumulate: int = option(
        1,
        "The number k of micro-batches whose gradients a step sums before the update. Inputs, "
        "and outputs except the loss, get a first axis of extent k; the loss is the mean.",
        check=_micro_batches,
        flag=Flag("micro-batches per step (default: {default})", metavar="K", parse=int),
    )
    ranks: int = option(
        1,
        "The number of data-parallel ranks. Each process has its own batch; gradients are summed "
        "and losses averaged. See docs/parallel.md.",
        check=partial(whole_number, most=MOST_RANKS),
        flag=Flag(
            "number of data-parallel ranks, each with its own batch (default: {default})",
            metavar="N",
            parse=int,
        ),
    )
    shard: Literal["none", "states"] = option(
        "none",
        "One of {choices}. With ``states``, each of N `ranks` stores and updates 1/N of "
        "parameters and moments, and parameters are gathered before use. See docs/parallel.md.",
        choices=("none", "states"),
        flag=Flag("what is sharded over ranks: {choices} (default: {default})", metavar="S"),
    )
    sync_norm: bool = option(
        False,
        "Synchronize batch norm statistics over all `ranks`.",
        check=truth,
        flag=Flag("synchronize batch norm statistics over all ranks", action="store_true"),
    )
    precision: Precision = option(
        "fp32",
        "One of {choices}. ``bf16`` and ``fp16`` store feature maps in 16 bits and parameters in "
        "float32; ``fp16`` scales the loss and skips the update of a step that overflows; ``fp8`` "
        "is ``bf16`` with 8-bit operands of linear layers. "
        "``tf32`` lets float32 products on a GPU round their operands to 10 bits of mantissa.",
        choices=tuple(PRECISIONS),
        check=check_precision,
        flag=Flag("precision of feature maps: {choices} (default: {default})", metavar="P"),
    )
    chunk_losses: bool | None = option(
        None,
        "Compute a cross entropy and the linear layer before it in chunks of rows if that "
        "reduces the peak by at least 5%. Losses and gradients are equal up to rounding, and "
        "have no second derivative. None does so on a GPU.",
        check=true_false_or_none,
        flag=Flag(
            "last layer and loss in chunks of rows if that reduces the peak (default: on a GPU)",
            action=argparse.BooleanOptionalAction,
        ),
    )


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


@asks
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
