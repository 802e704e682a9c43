"""Binding of a plan to the device on which it runs, which gives a program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from graphc.devices.device import ADA, AMPERE, AUTO, gpu_number
from graphc.errors import DependencyError, GpuUnavailable, OptionError, whole_number
from graphc.ir.types import FLOAT8, DType, bfloat16
from graphc.keywords import option, required, takes
from graphc.memory.streams import on_streams
from graphc.plans.check.check_family import check_family
from graphc.plans.check.check_plan import check_plan
from graphc.plans.cost_model import CostModel
from graphc.plans.family import FamilyPlan
from graphc.plans.memory_plan import MemoryPlan, as_plan
from graphc.plans.streams import MOST_STREAMS
from graphc.runtime.family import Family
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.cublaslt import CublasError
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.cudnn import Cudnn, CudnnError, load_cudnn
from graphc.runtime.gpu.device import Gpu, find_gpu, number_of_rank
from graphc.runtime.gpu.nccl import load_nccl
from graphc.runtime.gpu.records import read_record, write_record
from graphc.runtime.kernel_files import cache_folder
from graphc.runtime.options import RunOptions
from graphc.runtime.program import Program
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import connected_gpus, lane_of, ranks_of
from graphc.runtime.ranks.world import find_world, world_lane


def _check_streams(name: str, given: object) -> None:
    if given is not None:
        whole_number(name, given, most=MOST_STREAMS)


@dataclass(frozen=True)
class BindOptions(RunOptions):
    """The options of `bind`."""

    plan: MemoryPlan = field(
        metadata=required("A plan, such as the result of `graphc.load_plan`.", as_plan)
    )
    device: str | None = option(
        None,
        "The device of steps, ``cpu`` or ``cuda``; by default the device of the plan. A plan for "
        "one GPU runs on any GPU.",
    )
    _: KW_ONLY
    streams: int | None = option(
        None,
        "The number of streams, instead of that of the plan. Nodes that access different bytes "
        "may run concurrently. None uses the streams of the plan.",
        check=_check_streams,
    )


@takes(BindOptions)
def bind(options: BindOptions) -> Program:
    """Bind a plan, such as one that `graphc.load_plan` has read, and return the program.

    Raises `OptionError` if the plan is for a GPU and the device a CPU, or the reverse;
    `GpuUnavailable` if the plan needs a GPU and there is none; and `ArenaError` if the arena does
    not fit into the memory.
    """
    return _bound(options)


def bind_family(family: FamilyPlan, pad: Mapping[str, float], **options: Any) -> Family:
    """Bind the plans of several sizes to one arena; `options` are those of `bind`.

    Raises the errors of `bind`, `FeedError` for invalid numbers in `pad`, and `PlanError` if the
    plans cannot share an arena.
    """
    check_family(family.plans, family.arena_bytes)
    owner = _bound(BindOptions(family.largest, **options))
    programs = [
        owner if plan is family.largest else _bound(BindOptions(plan, **options), owner)
        for plan in family.plans
    ]
    return Family(family, programs, owner, pad)


def _bound(options: BindOptions, within: Program | None = None) -> Program:
    """Return the program of a plan, in an arena of its own or `within` that of another program."""
    plan, device, kind = options.plan, options.device, options.plan.device.kind
    if options.streams is not None:
        plan = on_streams(plan, CostModel.of(plan), options.streams)
        check_plan(plan)
    if kind == "cuda" and device in (None, AUTO, "cuda"):
        gpu = find(_own_gpu(plan))
    else:
        gpu = find(kind if device in (None, AUTO) else device)
    if (gpu is not None) != (kind == "cuda"):
        raise OptionError(
            f"the plan is for {plan.device.name} and cannot run on {device}; plan again with "
            f"device={device!r}"
        )
    if gpu is not None:
        if options.threads is not None:
            raise OptionError("threads applies only to native kernels on the CPU; omit it on a GPU")
        return _on_gpu(plan, gpu, options, within)
    if options.cudnn or options.tuning is not None:
        raise OptionError("cudnn and tuning apply only to GPUs; omit them on the CPU")
    if options.threads is not None and plan.device.kernels == "numpy":
        raise OptionError("threads applies only to native kernels; omit it with kernels='numpy'")
    return Program(
        plan, seed=options.seed, poison=options.poison, check_finite=options.check_finite,
        threads=options.threads, lane=_lane(plan, options), owner=options.states, within=within,
    )  # fmt: skip


def _lane(plan: MemoryPlan, options: BindOptions) -> Lane | None:
    """Return the queue of collectives for the ranks of a plan; None for a plan of one rank.

    All programs of a process share one queue (`Lane`), so the time limit that was requested last
    applies to all of them.
    """
    if ranks_of(plan) == 1:
        return None
    lane = world_lane()
    lane.time_limit = options.rank_timeout
    return lane


def _own_gpu(plan: MemoryPlan) -> str:
    """Return the name of the GPU of this rank: the one with the rank's local number."""
    return f"cuda:{number_of_rank(find_world().local_rank)}" if ranks_of(plan) > 1 else "cuda"


def _lent_on_gpu(plan: MemoryPlan, gpu: Gpu, owner: Program | None) -> dict[int, int] | None:
    """Map the indices of state buffers to their addresses in the arena of another program."""
    if owner is None:
        return None
    lent = owner.lend(plan)
    accelerator = owner.backend.accelerator if isinstance(owner.backend, GpuBackend) else None
    if isinstance(accelerator, CudaDevice) and accelerator.gpu.number != gpu.number:
        theirs = f"cuda:{accelerator.gpu.number}"
        raise OptionError(
            f"states belong to a program on {theirs}, not on cuda:{gpu.number}; choose "
            f"device={theirs!r}"
        )
    return lent


def _on_gpu(
    plan: MemoryPlan, gpu: Gpu, options: BindOptions, within: Program | None = None
) -> Program:
    cudnn, lent = options.cudnn, _lent_on_gpu(plan, gpu, options.states)
    if gpu.architecture < ADA and _uses(plan, *FLOAT8):
        raise OptionError(
            f"{gpu.name} is sm_{gpu.architecture}, whose tensor cores do not multiply 8-bit "
            f"floats; choose precision={'bf16' if gpu.architecture >= AMPERE else 'fp16'!r}"
        )
    if gpu.architecture < AMPERE and _uses(plan, bfloat16):
        raise OptionError(
            f"{gpu.name} is sm_{gpu.architecture}, which does not support bfloat16; choose "
            "precision='fp16'"
        )
    tuning = options.tuning
    kept = None if cudnn is None or isinstance(cudnn, bool) else cudnn
    if tuning is not None and kept is not None and Path(tuning) == Path(kept):
        raise OptionError(
            f"cudnn and tuning must be different files, got {os.fspath(tuning)!r} for both"
        )
    chosen = None if tuning is None else read_record(tuning, "algorithms", CublasError)
    connect, lane = None, _lane(plan, options)
    if lane is not None:
        connect = partial(connected_gpus, lane_of(plan, options.seed, lane), load_nccl())
    around = _gpu_backend(within)
    accelerator = (
        CudaDevice(gpu, cache_folder(), chosen, connect)
        if around is None
        else cast(CudaDevice, around.accelerator)
    )
    library: Cudnn | None = None
    missing: tuple[str, ...] = ()
    if cudnn is not False:
        try:
            library = _cudnn(accelerator, kept, options.deterministic)
        except DependencyError as error:
            if cudnn is not None:
                raise
            missing = (str(error),)
    backend = GpuBackend(
        plan, accelerator, cuda_graph=options.cuda_graph, poison=options.poison,
        check_finite=options.check_finite, cudnn=library, lent=lent,
        within=around,
    )  # fmt: skip
    if library is not None and kept is not None:
        write_record(kept, library.record, CudnnError)
    if tuning is not None and accelerator.products.record != chosen:
        write_record(tuning, accelerator.products.record, CublasError)
    backend.report = replace(backend.report, declined=(*missing, *backend.report.declined))
    return Program(
        plan, options.seed, options.poison, options.check_finite, backend=backend, lane=lane,
        owner=options.states, within=within,
    )  # fmt: skip


def _gpu_backend(program: Program | None) -> GpuBackend | None:
    backend = None if program is None else program.backend
    return backend if isinstance(backend, GpuBackend) else None


def _uses(plan: MemoryPlan, *dtypes: DType) -> bool:
    return any(value.type.dtype in dtypes for value in plan.placements)


def _cudnn(
    accelerator: CudaDevice, record: str | os.PathLike[str] | None, deterministic: bool
) -> Cudnn:
    """Load cuDNN, with the engines of an earlier run if `record` names an existing file."""
    known = None if record is None else read_record(record, "engines", CudnnError)
    with accelerator.active():
        return Cudnn(load_cudnn(), known, deterministic)


def find(device: str) -> Gpu | None:
    """Return the GPU that a device name denotes; None for the CPU. Raises `GpuUnavailable`."""
    if device == AUTO:
        try:
            return find_gpu(0)
        except GpuUnavailable:
            return None
    number = gpu_number(device)
    return None if number is None else find_gpu(number)
