"""compile(): the whole pipeline in plain order."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphc.errors import OptionError, choose
from graphc.ir import builder
from graphc.ir.device import ALIGNMENT, Device
from graphc.ir.graph import Graph, State, Value
from graphc.ir.text import format_graph
from graphc.ir.verify import verify
from graphc.ops.shape import copy
from graphc.optim import Optimizer
from graphc.passes.modes import to_inference
from graphc.passes.pipeline import FORWARD, GPU, TRAINING, Dump, run_passes
from graphc.passes.precision import to_mixed
from graphc.passes.recompute import Goal
from graphc.passes.recompute import recompute as recomputed
from graphc.passes.training_step import Training, training_graph
from graphc.placing import Placing
from graphc.plans.check_plan import check_plan
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs
from graphc.plans.memory_plan import (
    PRECISIONS,
    RECOMPUTE,
    Allocate,
    MemoryPlan,
    Precision,
    Recompute,
)
from graphc.runtime.bind import bind, find
from graphc.runtime.gpu.device import profile_of
from graphc.runtime.program import Program


def compile(
    loss: Value | None = None,
    *,
    outputs: Sequence[Value] | Mapping[str, Value] = (),
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    precision: Precision = "fp32",
    recompute: Recompute = "none",
    allocate: Allocate = "packed",
    budget: int | str | None = None,
    feature_map_budget: int | str | None = None,
    max_extra_flops: float | None = None,
    training: bool | None = None,
    alignment: int = ALIGNMENT,
    costs: Costs | None = None,
    roofline: str | None = None,
    reorder: bool = True,
    fuse: bool | None = None,
    device: str = "cpu",
    cuda_graph: bool = True,
    streams: int = 1,
    cudnn: bool | str | os.PathLike[str] = False,
    seed: int = 0,
    poison: bool = False,
    check_finite: bool = False,
    dump: str | os.PathLike[str] | None = None,
) -> Program:
    """Plan a network and bind it to one arena, ready to step.

    With an `optimizer` a step trains: it computes the loss, its gradients and the updates of all
    trainable parameters. Without one it only computes the outputs. `training` says whether batch
    norm uses the batch's statistics and dropout drops; by default it does where there is an
    optimizer, or a gradient among the outputs. `outputs` may be given beside
    the loss or alone, as a mapping, or as a sequence that is named ``output0``, ``output1``, ...

    `clip_norm` scales all gradients down together where their norm is larger. With `accumulate` k
    a step adds the gradients of k micro-batches before it updates: inputs, and outputs but the
    loss, get a first axis of k, and the loss is the average. `precision` is ``fp32``, or ``bf16``
    or ``fp16`` for feature maps of 16 bits beside float32 parameters; ``fp16`` scales the loss and
    skips the update of a step that overflows.

    `recompute` says what is computed again instead of kept: ``none``; ``mirror`` what
    `graphc.mirror` marks; ``cheap`` all but products; ``segments`` what stays inside a
    `graphc.segment` (Alg. 1); ``sublinear`` (Alg. 3), about the square root of the feature maps for
    one more forward pass; ``recursive``, about their logarithm for several; ``optimal``, what
    `budget` (bytes of the whole arena, a number or ``"7GiB"``), `feature_map_budget` (bytes of the
    paper's measure) or `max_extra_flops` (part of a step's flops) ask for, or without any the knee
    of the curve of bytes against time. Each of the three implies ``optimal``. `allocate` is one of
    ``none``, ``inplace``, ``sharing``, ``packed``. What a node costs in seconds follows from its
    flops and bytes and the peaks of the device named by `roofline`, or, with `costs`, from times
    that `graphc profile` has measured. `reorder` lets the nodes run in an order that lowers the
    arena and changes no bit; without it, and under all strategies but ``packed``, they run in the
    order of the paper. `fuse` makes groups of elementwise nodes one kernel each, which changes no
    bit either; None does so for a GPU, and leaves a CPU's nodes apart.

    `device` is ``cpu``, ``cuda``, ``cuda:1`` or ``auto``: a GPU where there is one. On a GPU a step
    is captured as a CUDA graph and replayed, unless `cuda_graph` is false; with `streams` above 1,
    nodes that touch different bytes may run at the same time. `precision` ``tf32`` lets its float32
    products round their operands to 10 bits. `cudnn` lets cuDNN do convolutions and 16-bit
    attention; a path names a file that keeps which engines it chose, so that a later run has the
    same ones. `seed` fixes the initial parameters.
    `poison` and `check_finite` are for debugging, see `Program`. `dump` names a folder for the
    graph after every pass. Raises `OptionError` for an unknown choice, `BudgetError` where
    no plan fits, `GpuUnavailable` without the GPU that was asked for, and `ArenaError` where the
    plan does not fit into its memory.
    """
    gpu = find(device)
    memory_plan = plan(
        loss,
        outputs=outputs,
        optimizer=optimizer,
        clip_norm=clip_norm,
        accumulate=accumulate,
        precision=precision,
        recompute=recompute,
        allocate=allocate,
        budget=budget,
        feature_map_budget=feature_map_budget,
        max_extra_flops=max_extra_flops,
        training=training,
        alignment=alignment,
        costs=costs,
        roofline=roofline,
        reorder=reorder,
        fuse=fuse,
        device="cpu" if gpu is None else profile_of(gpu),
        dump=dump,
    )
    for_gpu: dict[str, Any] = {"cuda_graph": cuda_graph, "streams": streams, "cudnn": cudnn}
    if gpu is None and device == "auto":
        for_gpu = {}
    return bind(
        memory_plan, "cpu" if gpu is None else f"cuda:{gpu.number}", seed=seed, poison=poison,
        check_finite=check_finite, **for_gpu,
    )  # fmt: skip


def plan(
    loss: Value | None = None,
    *,
    outputs: Sequence[Value] | Mapping[str, Value] = (),
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    precision: Precision = "fp32",
    recompute: Recompute = "none",
    allocate: Allocate = "packed",
    budget: int | str | None = None,
    feature_map_budget: int | str | None = None,
    max_extra_flops: float | None = None,
    training: bool | None = None,
    alignment: int = ALIGNMENT,
    costs: Costs | None = None,
    roofline: str | None = None,
    reorder: bool = True,
    fuse: bool | None = None,
    device: str | Device = "cpu",
    dump: str | os.PathLike[str] | None = None,
) -> MemoryPlan:
    """The memory plan of `compile` alone: no arena is allocated, so any size can be planned.

    No GPU is needed to plan for one: with `device` ``cuda`` the plan is for the GPU that `roofline`
    names, one of `graphc.ir.device.DEVICES`, by default an H200.
    """
    started = time.perf_counter()
    choose("recompute", recompute, RECOMPUTE)
    goal = Goal.of(budget, feature_map_budget, max_extra_flops)
    if goal is not None:
        if recompute not in ("none", "optimal"):
            raise OptionError(f"a budget decides what is recomputed; leave out {recompute!r}")
        if optimizer is None:
            raise OptionError("budgets are for training steps; give an optimizer")
        recompute = "optimal"
    step = _step(optimizer, clip_norm, accumulate, precision)
    placing = Placing(allocate, alignment, costs, roofline, reorder, fuse, device)
    dumps = Dump(Path(dump) if dump is not None else None)

    if placing.device.kind == "cpu" and precision == "tf32":
        raise OptionError("tf32 products are for GPUs; choose precision fp32 on the CPU")
    with _collection_paused():
        named = _named_outputs(loss, outputs)
        graph = _build(named, step, training, precision, placing.device, dumps)
        graph = placing.fused(graph, recompute != "none", dumps)
        certificate = None
        if step is not None:
            if recompute == "optimal":
                graph, certificate = placing.planner(graph).plan(goal or Goal())
            else:
                graph = recomputed(graph, recompute, placing.target)
            verify(graph)
            dumps.write("recompute", lambda: format_graph(graph))
        if recompute != "optimal":
            graph = placing.ordered(graph)
        graph = placing.with_updates_together(graph, goal or Goal() if certificate else None)
        dumps.write("order", lambda: format_graph(graph))
        memory_plan = placing.allocation(graph).plan(placing.allocate, recompute, placing.costs)
        settings = step.settings() if step is not None else {}
        if precision != "fp32":
            settings["precision"] = precision
        if placing.costs != CostModel(placing.device):
            settings["costs"] = str(placing.costs)
        if not reorder:
            settings["reorder"] = False
        settings |= placing.settings
        memory_plan = replace(memory_plan, settings=settings, certificate=certificate)
        check_plan(memory_plan)
        dumps.write("plan", lambda: str(memory_plan))
    seconds = time.perf_counter() - started
    return replace(memory_plan, planning_seconds=seconds)


def frontier(
    loss: Value,
    *,
    optimizer: Optimizer,
    outputs: Sequence[Value] | Mapping[str, Value] = (),
    clip_norm: float | None = None,
    accumulate: int = 1,
    precision: Precision = "fp32",
    allocate: Allocate = "packed",
    alignment: int = ALIGNMENT,
    costs: Costs | None = None,
    roofline: str | None = None,
    reorder: bool = True,
    fuse: bool | None = None,
    device: str | Device = "cpu",
) -> list[FrontierPoint]:
    """The trade-off of bytes against time: plans by growing arena, dominated ones left out.

    Options are those of `compile`.
    """
    step = _step(optimizer, clip_norm, accumulate, precision)
    placing = Placing(allocate, alignment, costs, roofline, reorder, fuse, device)
    with _collection_paused():
        named = _named_outputs(loss, outputs)
        graph = _build(named, step, None, precision, placing.device, Dump(None))
        graph = placing.fused(graph, True, Dump(None))
        planner = placing.planner(graph)
        bound = planner.bound_bytes()
        return [
            FrontierPoint(
                point.sizes.arena_bytes,
                point.sizes.feature_map_bytes,
                point.extra_time,
                point.extra_flops,
                planner.extra_time_bound(point.sizes.arena_bytes, maps_only=False),
                bound,
            )
            for point in planner.frontier()
        ]


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A plan's bytes, what it adds to a step's seconds and flops as parts of it, and bounds: what
    every plan within these bytes adds to the seconds, and the bytes that every plan needs."""

    arena_bytes: int
    feature_map_bytes: int
    extra_time_fraction: float
    extra_flops_fraction: float
    extra_time_bound: float
    bound_bytes: int


def _step(
    optimizer: Optimizer | None, clip_norm: float | None, accumulate: int, precision: Precision
) -> Training | None:
    """How a step trains, checked; None where it does not."""
    choose("precision", precision, tuple(PRECISIONS))
    if optimizer is None:
        if clip_norm is not None or accumulate != 1:
            raise OptionError("clip_norm and accumulate belong to training; give an optimizer")
        return None
    step = Training(optimizer, clip_norm, accumulate, precision)
    step.check()
    return step


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Planning makes many lasting objects and hardly a cycle; to search for cycles costs time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build(
    outputs: Mapping[str, Value],
    step: Training | None,
    training: bool | None,
    precision: Precision,
    device: Device,
    dumps: Dump,
) -> Graph:
    """The graph to plan, in its order, without copies."""
    if step is not None:
        outputs = _read_before_updates(outputs)
    traced = builder.trace(outputs)
    dumps.write("forward", lambda: format_graph(traced))
    if training is None:
        training = step is not None or any(n.phase == "gradient" for n in traced.nodes)
    if not training:
        traced = to_inference(traced)
    graph = run_passes(to_mixed(traced, precision), FORWARD, dumps)
    if step is not None:
        graph = run_passes(training_graph(graph, step), TRAINING, dumps)
    return graph if device.kind == "cpu" else run_passes(graph, GPU, dumps)


def _named_outputs(
    loss: Value | None, outputs: Sequence[Value] | Mapping[str, Value]
) -> dict[str, Value]:
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    else:
        values = builder.as_values("outputs", outputs)
        named = {f"output{index}": value for index, value in enumerate(values)}
    if loss is not None:
        if "loss" in named:
            raise OptionError("'loss' is the name of the loss; give the other output another name")
        named = {"loss": loss, **named}
    if not named:
        raise OptionError("compile needs a loss or outputs")
    for name, value in named.items():
        builder.check_name(name)
        builder.as_value(f"output {name!r}", value)
    return named


def _read_before_updates(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Outputs that are states, or views of one, as copies: the update comes before the copy out."""
    return {name: copy(v) if isinstance(v.root, State) else v for name, v in outputs.items()}
