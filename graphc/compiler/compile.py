"""Public functions that plan a network: a program, its plan alone, or plans for all budgets.

The pipeline is in pipeline.py, its options in options.py and `graphc.runtime.options`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

from graphc.compiler.compilation import collection_paused
from graphc.compiler.options import FrontierOptions, PlanningOptions, PlanOptions
from graphc.compiler.pipeline import make_plan, planner_of
from graphc.devices.device import AUTO, NO_PAIRS, Device, planned_device
from graphc.errors import GpuUnavailable
from graphc.keywords import Flag, option, takes
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.bind import bind, find
from graphc.runtime.gpu.device import Gpu, profile_of
from graphc.runtime.options import RunOptions
from graphc.runtime.program import Program

Told = TypeVar("Told", bound=PlanningOptions)


@dataclass(frozen=True)
class CompileOptions(RunOptions, PlanOptions):
    """The options of a program: those of its plan, and those of its execution."""

    _: KW_ONLY
    device: str = option(
        "cpu",
        "The device of steps: ``cpu``, ``cuda``, ``cuda:1`` or ``auto`` (a GPU if there is one).",
        flag=Flag(
            "cpu, cuda, cuda:1, or auto: a GPU if there is one (default: {default})", metavar="D"
        ),
    )


@takes(CompileOptions)
def compile(options: CompileOptions) -> Program:
    """Plan a network and bind it to one arena, ready to step.

    Raises `OptionError` for an unknown choice, `BudgetError` if no plan fits, `GpuUnavailable` if
    the requested GPU is missing, and `ArenaError` if the plan does not fit into the memory of its
    device.
    """
    planned = planned_to_run(options)
    return bind(make_plan(planned.plan), planned.device, **planned.running)


@dataclass(frozen=True, slots=True)
class PlannedToRun:
    """The options of a program, for its plan, its device and its execution."""

    plan: PlanOptions
    device: str
    running: dict[str, Any]


def planned_to_run(options: CompileOptions) -> PlannedToRun:
    """Return the options of a program on this machine; raises `GpuUnavailable`."""
    gpu = find(options.device)
    planned, running = options.shared(PlanOptions), options.shared(RunOptions)
    if gpu is None and options.device == AUTO:  # these options require a GPU
        planned |= {"overlap_copies": False, "streams": 1}
        running |= {"cudnn": None, "tuning": None}
    device = _profile(gpu)
    if isinstance(device, Device):
        # Without cuDNN, or if sums may have any order, no scores of all pairs are stored.
        needs_no_pairs = options.cudnn is False or not options.deterministic
        if needs_no_pairs or not device.cudnn_version:
            device = replace(device, cudnn_version=NO_PAIRS)
    name = "cpu" if gpu is None else f"cuda:{gpu.number}"
    return PlannedToRun(PlanOptions(**{**planned, "device": device}), name, running)


@takes(PlanOptions)
def plan(options: PlanOptions) -> MemoryPlan:
    """Return the memory plan of `compile` alone.

    No arena is allocated, so a plan of any size can be made. Raises the errors of `compile` except
    `ArenaError`.
    """
    return make_plan(on_this_machine(options))


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan on the trade-off curve of bytes against time.

    `arena_bytes` and `feature_map_bytes` are the sizes of its arena and of its feature maps.
    `extra_time_fraction` and `extra_flops_fraction` are the time and the flops that it adds, as
    fractions of a step. `extra_time_bound` is a lower bound on the added time of any plan within
    these bytes. `bound_bytes` is a lower bound on the bytes of any plan.
    """

    arena_bytes: int
    feature_map_bytes: int
    extra_time_fraction: float
    extra_flops_fraction: float
    extra_time_bound: float
    bound_bytes: int


@takes(FrontierOptions)
def frontier(options: FrontierOptions) -> list[FrontierPoint]:
    """Return the Pareto frontier of bytes against time: plans by increasing arena size."""
    options = on_this_machine(options)
    with collection_paused():
        plans = planner_of(options)
        found = plans.frontier(options.host_bytes)
        bound = min(plans.bound_bytes, found[0].arena_bytes)
        return [
            FrontierPoint(
                point.arena_bytes,
                point.feature_map_bytes,
                point.extra_time,
                point.extra_flops,
                plans.extra_time_bound(point.arena_bytes, options.host_bytes),
                bound,
            )
            for point in found
        ]


def device_of(device: str | Device, roofline: str | None) -> Device:
    """Return the device profile for these options.

    ``auto`` and ``cuda`` select the device of this machine.
    """
    if device == AUTO:
        device = _profile(find(AUTO))
    return planned_device(_present(device, roofline), roofline)


def on_this_machine(options: Told) -> Told:
    """Return the options with ``auto`` or ``cuda`` replaced by the device of this machine."""
    if options.device != AUTO:
        return replace(options, device=_present(options.device, options.roofline))
    gpu = find(AUTO)
    overlaps = options.overlap_copies and gpu is not None  # copies overlap only on a GPU
    return replace(options, device=_profile(gpu), overlap_copies=overlaps)


def _present(device: str | Device, roofline: str | None) -> str | Device:
    """Return the profile of the GPU named ``cuda`` or ``cuda:1`` if it is present.

    If `roofline` requests another device, or the GPU is missing, return `device` unchanged. The
    plan is then made for the default GPU.
    """
    if roofline is not None or not (isinstance(device, str) and device.startswith("cuda")):
        return device
    try:
        return _profile(find(device))
    except GpuUnavailable:
        return device


def _profile(gpu: Gpu | None) -> str | Device:
    """Return the device to plan for if steps run on this GPU, or on the CPU for None."""
    return "cpu" if gpu is None else profile_of(gpu)
