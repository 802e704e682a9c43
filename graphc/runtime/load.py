"""A plan, and the device that it runs on, as a program."""

from __future__ import annotations

from graphc.ir.plan import MemoryPlan
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.cubins import cache_folder
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.device import Gpu
from graphc.runtime.program import Program


def load_program(
    plan: MemoryPlan,
    gpu: Gpu | None,
    *,
    cuda_graph: bool = True,
    streams: int = 1,
    seed: int = 0,
    poison: bool = False,
    check_finite: bool = False,
) -> Program:
    """A program on a GPU, or on the CPU without one; options are those of `graphc.compile`."""
    if gpu is None:
        return Program(plan, seed=seed, poison=poison, check_finite=check_finite)
    backend = GpuBackend(
        plan, CudaDevice(gpu, cache_folder()), cuda_graph=cuda_graph, streams=streams,
        poison=poison, check_finite=check_finite,
    )  # fmt: skip
    return Program(plan, seed=seed, poison=poison, check_finite=check_finite, backend=backend)
