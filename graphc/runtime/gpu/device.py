"""The GPUs of this machine, found by CuPy. Importing this module needs neither CuPy nor a GPU."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from typing import Any

from graphc.devices.device import AMPERE, Device, find_device, profiles
from graphc.errors import GpuUnavailable, to_install
from graphc.runtime.gpu.cudnn import cudnn_version

CORES = {75: 64, 80: 64}
"""Float32 cores of a multiprocessor by architecture; later ones have 128."""

TENSOR_RATES = {75: 8, 80: 16, 86: 4, 89: 4, 90: 16, 100: 32, 103: 32, 120: 4}
"""Rate of 16-bit products on tensor cores with float32 sums, as a multiple of the rate of float32,
by architecture. GeForce GPUs have half of it. From NVIDIA's data sheets, see `DEVICES`."""

OLDEST_ARCHITECTURE = 75
USE_CPU = 'device="cpu" works everywhere'


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number, name, compute capability, memory and peak rates."""

    number: int
    name: str
    architecture: int
    """The compute capability times ten: 90 for 9.0."""
    memory_bytes: int
    free_bytes: int
    flops_per_second: float
    """The peak rate of float32 operations: two per core and clock cycle."""
    bytes_per_second: float


def load_cupy() -> Any:
    """Import CuPy, and check that it can use a GPU; raises `GpuUnavailable`."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        reason = f"CuPy cannot be imported ({error})"
        cure = to_install("cupy-cuda13x", "gpu")
        raise GpuUnavailable(reason, f"{cure}; {USE_CPU}") from None
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        driver, wanted = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        reason = f"CUDA finds no device ({error}; driver {_version(driver)})"
        raise GpuUnavailable(reason, f"{_cure(driver, wanted)}; {USE_CPU}") from None
    if count == 0:
        raise GpuUnavailable("this machine has no CUDA device", USE_CPU)
    return cupy


def _cure(driver: int, runtime: int) -> str:
    """Describe the fix if CUDA finds no device.

    It depends on CUDA's version numbers of the driver and the runtime; 0 means no driver. A driver
    supports all minor versions of its major version.
    """
    if driver // 1000 >= runtime // 1000:
        return "the driver is recent enough; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    what = "install" if driver == 0 else "replace it with"
    return f"{what} NVIDIA's driver for CUDA {runtime // 1000} or later"


def find_gpus() -> tuple[Gpu, ...]:
    """Return all GPUs of this machine, at least one; raises `GpuUnavailable`."""
    cupy = load_cupy()
    runtime = cupy.cuda.runtime
    return tuple(_gpu(cupy, number) for number in range(runtime.getDeviceCount()))


def find_gpu(number: int) -> Gpu:
    """Return the GPU with this number; raises `GpuUnavailable`."""
    cupy = load_cupy()
    count = cupy.cuda.runtime.getDeviceCount()
    if number >= count:
        listed = ", ".join(f"cuda:{each}" for each in range(count))
        raise GpuUnavailable(f"this machine has no cuda:{number}", f"choose one of {listed}")
    gpu = _gpu(cupy, number)
    if gpu.architecture < OLDEST_ARCHITECTURE:
        raise GpuUnavailable(
            f"{gpu.name} is sm_{gpu.architecture}",
            f"CUDA 13 requires sm_{OLDEST_ARCHITECTURE} or later; {USE_CPU}",
        )
    return gpu


def number_of_rank(local_rank: int) -> int:
    """Return the number of the GPU of a rank: its local rank.

    It is 0 if only one GPU is visible, since some launchers show each rank only its own. Raises
    `GpuUnavailable`.
    """
    return local_rank if load_cupy().cuda.runtime.getDeviceCount() > 1 else 0


def profile_of(gpu: Gpu) -> Device:
    """Return the device to plan for, with the version of the installed cuDNN.

    Its rates are those of the data sheet if graphc has a profile of the GPU, else those that the
    driver reports, and rates of tensor cores by architecture.
    """
    words = re.split(r"[^a-z0-9]+", gpu.name.lower())
    named = [device for device in map(find_device, profiles()) if _is_called(words, device.name)]
    ratio = TENSOR_RATES.get(gpu.architecture, min(TENSOR_RATES.values()))
    if "gtx" in words:  # the only GPUs of their architecture without tensor cores
        ratio = 0
    narrow = gpu.flops_per_second * (ratio / 2 if "geforce" in words else ratio)
    own = Device(
        gpu.name, gpu.flops_per_second, gpu.bytes_per_second,
        kind="cuda", architecture=gpu.architecture, narrow_flops_per_second=narrow,
        tf32_flops_per_second=narrow / 2 if gpu.architecture >= AMPERE else 0.0,
    )  # fmt: skip
    found = max(named, key=lambda device: len(device.name), default=own)
    return replace(found, cudnn_version=cudnn_version())


def _is_called(words: list[str], profile: str) -> bool:
    """Return True if the driver's name of a GPU, split into words, matches a profile.

    Names of data center GPUs have further words for form factor and memory, as in ``NVIDIA
    A100-SXM4-40GB``. For GeForce GPUs, a further word such as ``Ti`` or ``Laptop`` denotes another
    GPU.
    """
    parts = profile.split("-")
    if parts[0] == "rtx":
        return [word for word in words if word not in ("nvidia", "geforce")] == parts
    return set(parts) <= set(words)


def _gpu(cupy: Any, number: int) -> Gpu:
    properties = cupy.cuda.runtime.getDeviceProperties(number)
    with cupy.cuda.Device(number):
        free, total = cupy.cuda.runtime.memGetInfo()
    architecture = 10 * properties["major"] + properties["minor"]
    attributes = cupy.cuda.Device(number).attributes
    cores = properties["multiProcessorCount"] * CORES.get(architecture, 128)
    clock, memory_clock = (max(1, attributes[n]) for n in ("ClockRate", "MemoryClockRate"))
    flops = 2e3 * clock * cores
    bandwidth = 2e3 * memory_clock * max(8, attributes["GlobalMemoryBusWidth"]) / 8
    name = properties["name"].decode()
    return Gpu(number, name, architecture, total, free, flops, bandwidth)


def cuda_versions() -> dict[str, str]:
    """Return the versions of CuPy, of its CUDA runtime and of the driver.

    Raises `GpuUnavailable`.
    """
    cupy = load_cupy()
    runtime = cupy.cuda.runtime
    return {
        "cupy": cupy.__version__,
        "cuda": _version(runtime.runtimeGetVersion()),
        "driver": _version(runtime.driverGetVersion()),
    }


def _version(number: int) -> str:
    """Convert CUDA's version number to text: 13020 is 13.2, and 0 means no driver."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"
