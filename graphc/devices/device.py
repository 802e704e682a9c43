"""Device profiles for planning: rates of arithmetic and memory, and scratch limits of kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from graphc.devices.device_memory import REPORTED_MIB, sold_gigabytes
from graphc.errors import OptionError, choose, did_you_mean
from graphc.ir.types import DType, float32

AUTO = "auto"
"""The device name for the GPU of this machine, or its CPU if there is none."""

NO_PAIRS = -1
"""A version of cuDNN: none, or one that may add in any order."""

AMPERE, ADA, HOPPER = 80, 89, 90
"""Architectures of GPUs; products of 8-bit floats need the first one or a later one."""

ALIGNMENT = 256
"""The alignment of all buffers in bytes, which vector loads, cuBLAS and cuDNN require."""


Kernels = Literal["native", "numpy"]
"""The kernels on a CPU: generated machine code, or NumPy's functions alone."""

KERNELS: tuple[Kernels, ...] = ("native", "numpy")
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """A device profile: peak rates of arithmetic and memory, and a limit of scratch per node."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    workspace_limit_bytes: int = 64 * 2**20
    kind: Literal["cpu", "cuda"] = "cpu"
    architecture: int = 0
    """Ten times the compute capability of a GPU, 90 for 9.0; 0 for a CPU."""
    kernels: Kernels = "native"
    """The kernels that run nodes: native code, or NumPy alone, which only a CPU has."""
    narrow_flops_per_second: float = 0.0
    """Flops per second of products of 16-bit operands on tensor cores; 0 without tensor cores."""
    tf32_flops_per_second: float = 0.0
    """Flops per second of float32 products on tensor cores, which round operands to 10 bits (TF32).

    It is 0 without TF32 tensor cores.
    """
    cudnn_version: int = 0
    """The version of cuDNN on the machine with this GPU, such as 91900 for 9.19.0.

    It is 0 if unknown, and `NO_PAIRS` if no gradient of attention stores scores of all pairs there.
    """

    @property
    def blas_workspace_bytes(self) -> int:
        """The workspace for one product that the documentation of the vendor's BLAS recommends."""
        if self.kind == "cpu":
            return 0
        return (32 if self.architecture >= HOPPER else 4) * 2**20

    @property
    def has_bfloat16(self) -> bool:
        """True unless a GPU has no arithmetic of bfloat16: V100, T4 and their generations."""
        return self.kind == "cpu" or self.architecture >= AMPERE

    @property
    def has_float8(self) -> bool:
        """True for a GPU whose tensor cores multiply 8-bit floats, at twice the rate of 16 bits."""
        return self.kind == "cuda" and self.architecture >= ADA

    def product_rate(self, dtype: DType, tf32: bool = False) -> float:
        """Return flops per second of products of operands of that dtype."""
        special = 0.0
        if dtype.kind == "float8" and self.has_float8:
            special = 2 * self.narrow_flops_per_second
        elif dtype.itemsize == 2:
            special = self.narrow_flops_per_second
        elif tf32 and dtype == float32:
            special = self.tf32_flops_per_second
        return special or self.flops_per_second

    def seconds(self, flops: int, moved_bytes: int, rate: float | None = None) -> float:
        """Return the roofline time: the larger of `flops` over `rate`, and the time to move
        bytes."""
        return max(flops / (rate or self.flops_per_second), moved_bytes / self.bytes_per_second)


CPU = Device("cpu", flops_per_second=1e11, bytes_per_second=2e10, kernels="numpy")
"""The reference CPU: about the rates of two current server cores, with NumPy's kernels."""

NATIVE_CPU = replace(CPU, kernels="native")
"""The same processor with native kernels."""


def _gpu(
    name: str,
    architecture: int,
    bandwidth: float,
    flops: float,
    narrow: float,
    tf32: float = 0.0,
) -> Device:
    return Device(
        name, flops, bandwidth, kind="cuda", architecture=architecture,
        narrow_flops_per_second=narrow, tf32_flops_per_second=tf32,
    )  # fmt: skip


DEVICES = {
    device.name: device
    for device in (
        NATIVE_CPU,
        _gpu("v100", 70, 900e9, 15.7e12, 125e12),
        _gpu("v100-32gb", 70, 900e9, 15.7e12, 125e12),
        _gpu("t4", 75, 300e9, 8.1e12, 65e12),
        _gpu("a100", 80, 2039e9, 19.5e12, 312e12, 156e12),
        _gpu("a100-40gb", 80, 1555e9, 19.5e12, 312e12, 156e12),
        _gpu("a10", 86, 600e9, 31.2e12, 125e12, 62.5e12),
        _gpu("a40", 86, 696e9, 37.4e12, 149.7e12, 74.8e12),
        _gpu("rtx-a5000", 86, 768e9, 27.8e12, 111.1e12, 55.6e12),
        _gpu("rtx-a6000", 86, 768e9, 38.7e12, 154.8e12, 77.4e12),
        _gpu("rtx-2080-ti", 75, 616e9, 13.45e12, 53.8e12),
        _gpu("rtx-3060", 86, 360e9, 12.7e12, 25.5e12, 12.7e12),
        _gpu("rtx-3070", 86, 448e9, 20.3e12, 40.6e12, 20.3e12),
        _gpu("rtx-3080", 86, 760e9, 29.8e12, 59.5e12, 29.8e12),
        _gpu("rtx-3090", 86, 936e9, 35.6e12, 71e12, 35.6e12),
        _gpu("l4", 89, 300e9, 30.3e12, 121e12, 60e12),
        _gpu("l40s", 89, 864e9, 91.6e12, 362e12, 183e12),
        _gpu("rtx-4060", 89, 272e9, 15.1e12, 30.2e12, 15.1e12),
        _gpu("rtx-4070", 89, 504e9, 29.1e12, 58.3e12, 29.1e12),
        _gpu("rtx-4070-ti", 89, 504e9, 40.1e12, 80.2e12, 40.1e12),
        _gpu("rtx-4080", 89, 717e9, 48.7e12, 97.5e12, 48.7e12),
        _gpu("rtx-4080-super", 89, 736e9, 52.2e12, 104.4e12, 52.2e12),
        _gpu("rtx-4090", 89, 1008e9, 82.6e12, 165e12, 82.6e12),
        _gpu("h100", 90, 3350e9, 67e12, 989e12, 494e12),
        _gpu("h200", 90, 4800e9, 67e12, 989e12, 494e12),
        _gpu("gh200", 90, 4000e9, 67e12, 989e12, 494e12),
        _gpu("h20", 90, 4000e9, 44e12, 148e12, 74e12),
        _gpu("b200", 100, 7700e9, 75e12, 2250e12, 1125e12),
        _gpu("rtx-5070", 120, 672e9, 30.9e12, 61.7e12, 30.9e12),
        _gpu("rtx-5070-ti", 120, 896e9, 43.9e12, 87.9e12, 43.9e12),
        _gpu("rtx-5080", 120, 960e9, 56.3e12, 112.6e12, 56.3e12),
        _gpu("rtx-5090", 120, 1792e9, 104.8e12, 209e12, 104.8e12),
    )
}
"""Device profiles by name. GPU rates are peaks from the vendors' data sheets, not measurements.

These are memory bandwidth, float32 without tensor cores, and dense products on tensor cores, of
16-bit operands with float32 sums and of TF32. Variants: V100 SXM2 (16 GB, except for
``v100-32gb``), A100 SXM (80 GB, except for ``a100-40gb``), L40S, H100 SXM, H200 SXM, B200 SXM,
GH200 (96 GB of HBM3), H20 (96 GB), GeForce RTX 3060 (12 GB), RTX 3080 (10 GB).
Their memory is in graphc/devices/device_memory.py.
"""


def find_device(name: str) -> Device:
    """Return the device profile of that name.

    Raises `OptionError` with all names for an unknown one.
    """
    return DEVICES[choose("device profile", name, tuple(DEVICES))]


DEFAULT_GPU = "h200"
"""The GPU profile of plans for ``cuda`` without a `roofline`."""


def profiles() -> tuple[str, ...]:
    """Return the names of all GPU profiles."""
    return tuple(device.name for device in DEVICES.values() if device.kind == "cuda")


def profiles_with_memory() -> str:
    """Return a text with the names of all GPU profiles and the memory they are sold with."""
    return ", ".join(f"{name} ({sold_gigabytes(name)}GB)" for name in profiles())


def profile_with_memory(text: str) -> str:
    """Return the GPU profile for a memory such as ``16GB``, or of a name in upper case; other text
    is returned unchanged.

    Of the GPUs sold with that memory, it is the one with the fewest usable bytes, so that a plan
    fits all of them. Raises `OptionError` if no GPU has that memory.
    """
    lower = text.strip().lower()
    match = re.fullmatch(r"(\d{1,4}) ?gi?b", lower)
    if match is None:
        return lower if lower in DEVICES else text
    sizes = {name: sold_gigabytes(name) for name in profiles()}
    sold = [name for name, size in sizes.items() if size == int(match[1])]
    if not sold:
        listed = ", ".join(f"{size}GB" for size in sorted(set(sizes.values())))
        raise OptionError(f"no GPU is sold with {text}; choose one of: {listed}, or give a budget")
    return min(sold, key=REPORTED_MIB.__getitem__)


def gpu_number(device: str, others: tuple[str, ...] = ()) -> int | None:
    """Return the number of the GPU that ``cuda`` or ``cuda:1`` names; None for ``cpu``.

    Raises `OptionError` for another device. Its message lists `others` as further allowed names.
    """
    if device == "cpu":
        return None
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
        names = ("cpu", "cuda", "cuda:1", "auto", *others)
        near = did_you_mean(device, names, before="; ") if isinstance(device, str) else ""
        near = "; did you mean cuda?" if device == "gpu" else near
        raise OptionError(f"unknown device {device!r}; choose one of: {', '.join(names)}{near}")
    return int(number or "0")


def planned_device(
    device: str | Device, roofline: str | None, kernels: Kernels = "native"
) -> Device:
    """Return the device profile of a plan for `device`.

    For ``cuda`` it is the profile named `roofline`; for ``cpu`` it is the CPU with these `kernels`.
    A device may also be the name of a profile, or a GPU's memory such as ``16GB``. Raises
    `OptionError` for unknown names, and if one of device and roofline is a CPU and the other a GPU.
    """
    if device == CPU.name:
        return replace(CPU, kernels=kernels)
    if isinstance(device, str):
        device = profile_with_memory(device)
        device = DEVICES.get(device, device)
    if isinstance(device, Device):
        if roofline and find_device(roofline).kind != device.kind:
            raise OptionError(
                f"the roofline {roofline!r} describes another kind of device than {device.name}; "
                "choose a roofline of the same kind"
            )
        return device
    gpu_number(device, profiles())
    found = find_device(roofline or DEFAULT_GPU)
    if found.kind != "cuda":
        gpus = ", ".join(profiles())
        raise OptionError(
            f"the roofline {roofline!r} does not describe a GPU; choose one of {gpus}"
        )
    return found
