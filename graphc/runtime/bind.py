"""A plan and the device that it runs on become a program."""

from __future__ import annotations

from graphc.errors import GpuUnavailable, OptionError
from graphc.ir.device import gpu_number
from graphc.ir.plan import MemoryPlan
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.cubins import cache_folder
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.device import Gpu, find_gpu
from graphc.runtime.program import Program


def bind(
    plan: MemoryPlan,
    device: str | None = None,
    *,
    cuda_graph: bool = True,
    streams: int = 1,
    seed: int = 0,
    poison: bool = False,
    check_finite: bool = False,
) -> Program:
    """A program of a plan, such as one that `graphc.load_plan` has read.

    `device` is by default what the plan was made for: ``cpu``, or ``cuda``. A plan for one GPU runs
    on any. The other options are those of `graphc.compile`. Raises `OptionError` for a plan of the
    other kind of device, `GpuUnavailable` without a GPU, `ArenaError` where the arena does not fit.
    """
    kind = plan.device.kind
    gpu = find(device or kind)
    if (gpu is not None) != (kind == "cuda"):
        raise OptionError(
            f"the plan was made for {plan.device.name} and cannot run on {device}; plan again with "
            f"device={device!r}"
        )
    if gpu is None:
        return Program(plan, seed=seed, poison=poison, check_finite=check_finite)
    backend = GpuBackend(
        plan, CudaDevice(gpu, cache_folder()), cuda_graph=cuda_graph, streams=streams,
        poison=poison, check_finite=check_finite,
    )  # fmt: skip
    return Program(plan, seed=seed, poison=poison, check_finite=check_finite, backend=backend)


def find(device: str) -> Gpu | None:
    """The GPU that a name stands for; None for the CPU. Raises `GpuUnavailable`."""
    if device == "auto":
        try:
            return find_gpu(0)
        except GpuUnavailable:
            return None
    number = gpu_number(device)
    return None if number is None else find_gpu(number)
