"""What users call to plan a network: a program, its plan alone, or plans for all budgets.

The steps from a network to a plan stand in `graphc.pipeline`, their options in `graphc.options`
and `graphc.runtime.options`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TypeVar

from graphc.errors import GpuUnavailable
from graphc.ir.device import Device, planned_device
from graphc.keywords import Flag, option, takes
from graphc.options import AUTO, FrontierOptions, PlanningOptions, PlanOptions
from graphc.pipeline import Compilation, before, collection_paused, make_plan, planner, run, traced
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.bind import bind, find
from graphc.runtime.gpu.device import Gpu, profile_of
from graphc.runtime.options import RunOptions
from graphc.runtime.program import Program

Told = TypeVar("Told", bound=PlanningOptions)


@dataclass(frozen=True)
class CompileOptions(RunOptions, PlanOptions):
    """The options of a program: those of its plan, and how it runs."""

    _: KW_ONLY
    device: str = option(
        "cpu",
        "Where steps run: ``cpu``, ``cuda``, ``cuda:1`` or ``auto``, a GPU where there is one.",
        flag=Flag(
            "cpu, cuda, cuda:1, or auto: a GPU where there is one (default: {default})", metavar="D"
        ),
    )


@takes(CompileOptions)
def compile(options: CompileOptions) -> Program:
    """Plan a network and bind it to one arena, ready to step.

    Raises `OptionError` for an unknown choice, `BudgetError` where no plan fits, `GpuUnavailable`
    without the GPU that was asked for, and `ArenaError` where the plan does not fit into its
    memory.
    """
    gpu = find(options.device)
    planned, running = options.shared(PlanOptions), options.shared(RunOptions)
    if gpu is None and options.device == AUTO:  # only a GPU has them
        planned |= {"overlap_copies": False, "streams": 1}
        running |= {"cudnn": None, "tuning": None}
    device = _profile(gpu)
    if isinstance(device, Device) and (options.cudnn is False or not options.deterministic):
        device = replace(device, cudnn_version=0)  # no scores of all pairs are kept
    memory_plan = make_plan(PlanOptions(**{**planned, "device": device}))
    return bind(memory_plan, "cpu" if gpu is None else f"cuda:{gpu.number}", **running)


@takes(PlanOptions)
def plan(options: PlanOptions) -> MemoryPlan:
    """The memory plan of `compile` alone: no arena is allocated, so any size can be planned.

    Raises what `compile` does but for `ArenaError`.
    """
    return make_plan(_on_this_machine(options))


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan on the curve of bytes against time: its bytes, and the parts that it adds to a step's
    seconds and flops. `extra_time_bound` is the least part of the seconds that any plan within
    these bytes adds, `bound_bytes` the fewest bytes that any plan needs."""

    arena_bytes: int
    feature_map_bytes: int
    extra_time_fraction: float
    extra_flops_fraction: float
    extra_time_bound: float
    bound_bytes: int


@takes(FrontierOptions)
def frontier(options: FrontierOptions) -> list[FrontierPoint]:
    """The trade-off of bytes against time: plans by growing arena, dominated ones left out."""
    options = _on_this_machine(options)
    with collection_paused():
        compilation = Compilation(options)
        plans = planner(run(traced(options), before("recompute"), compilation), compilation)
        found = plans.frontier()
        bound = min(plans.bound_bytes, found[0].arena_bytes)
        return [
            FrontierPoint(
                point.arena_bytes,
                point.feature_map_bytes,
                point.extra_time,
                point.extra_flops,
                plans.extra_time_bound(point.arena_bytes, maps_only=False),
                bound,
            )
            for point in found
        ]


def device_of(device: str | Device, roofline: str | None) -> Device:
    """The profile that a plan with these options is for; of ``auto`` and ``cuda`` this machine's
    device."""
    if device == AUTO:
        device = _profile(find(AUTO))
    return planned_device(_present(device, roofline), roofline)


def _on_this_machine(options: Told) -> Told:
    """The options with the device that ``auto`` or ``cuda`` stands for on this machine."""
    if options.device != AUTO:
        return replace(options, device=_present(options.device, options.roofline))
    gpu = find(AUTO)
    overlaps = options.overlap_copies and gpu is not None  # only a GPU has copies that overlap
    return replace(options, device=_profile(gpu), overlap_copies=overlaps)


def _present(device: str | Device, roofline: str | None) -> str | Device:
    """The profile of the GPU that ``cuda`` or ``cuda:1`` names, if there is one and no `roofline`
    asks for another; else `device` itself, which is then planned for as the default GPU."""
    if roofline is not None or not (isinstance(device, str) and device.startswith("cuda")):
        return device
    try:
        return _profile(find(device))
    except GpuUnavailable:
        return device


def _profile(gpu: Gpu | None) -> str | Device:
    """The device that a plan is made for where steps run on this GPU, or on the CPU for None."""
    return "cpu" if gpu is None else profile_of(gpu)
