"""What planning has to know of a device: how fast it is, and how much scratch a kernel may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from graphc.errors import OptionError, choose, did_you_mean
from graphc.ir.types import DType, float32

HOPPER = 90

ALIGNMENT = 256
"""The bytes that every address is a multiple of: what vector loads, cuBLAS and cuDNN want."""


Kernels = Literal["native", "numpy"]
"""What runs nodes on a CPU: machine code that is made for them, or NumPy's functions alone."""

KERNELS: tuple[Kernels, ...] = ("native", "numpy")
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of arithmetic and memory, and the most bytes of scratch for one node."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    workspace_limit_bytes: int = 64 * 2**20
    kind: Literal["cpu", "cuda"] = "cpu"
    architecture: int = 0
    """Ten times the compute capability of a GPU, 90 for 9.0; 0 for a CPU."""
    kernels: Kernels = "native"
    """Whether nodes run as native code, or by NumPy alone, which only a CPU does."""
    narrow_flops_per_second: float = 0.0
    """Of products of 16-bit operands, where tensor cores compute them; else 0."""
    tf32_flops_per_second: float = 0.0
    """Of products of float32 operands that may be rounded to 10 bits, in the same way."""
    cudnn_version: int = 0
    """The version of cuDNN on the machine with this GPU, such as 91900 for 9.19.0; 0 if unknown."""

    @property
    def blas_workspace_bytes(self) -> int:
        """What the vendor's BLAS wants for one product, by its documentation."""
        if self.kind == "cpu":
            return 0
        return (32 if self.architecture >= HOPPER else 4) * 2**20

    def product_rate(self, dtype: DType, tf32: bool = False) -> float:
        """Flops a second of products of operands of that dtype."""
        special = 0.0
        if dtype.itemsize == 2:
            special = self.narrow_flops_per_second
        elif tf32 and dtype == float32:
            special = self.tf32_flops_per_second
        return special or self.flops_per_second

    def seconds(self, flops: int, moved_bytes: int, rate: float | None = None) -> float:
        """The roofline: the larger of computing time, at that rate of flops a second, and moving
        time."""
        return max(flops / (rate or self.flops_per_second), moved_bytes / self.bytes_per_second)


CPU = Device("cpu", flops_per_second=1e11, bytes_per_second=2e10, kernels="numpy")
"""Two cores of a current server, to the order of magnitude, with NumPy's kernels: the reference."""

NATIVE_CPU = replace(CPU, kernels="native")
"""The same processor with kernels of machine code."""


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
        _gpu("rtx-3090", 86, 936e9, 35.6e12, 71e12, 35.6e12),
        _gpu("l4", 89, 300e9, 30.3e12, 121e12, 60e12),
        _gpu("l40s", 89, 864e9, 91.6e12, 362e12, 183e12),
        _gpu("rtx-4090", 89, 1008e9, 82.6e12, 165e12, 82.6e12),
        _gpu("h100", 90, 3350e9, 67e12, 989e12, 494e12),
        _gpu("h200", 90, 4800e9, 67e12, 989e12, 494e12),
        _gpu("b200", 100, 7700e9, 75e12, 2250e12, 1125e12),
        _gpu("rtx-5090", 120, 1792e9, 104.8e12, 209e12, 104.8e12),
    )
}
"""Peaks of the vendor's data sheets, not measurements: memory bandwidth, float32 without tensor
cores, and dense products on them, of 16-bit operands with float32 sums and of TF32; V100 SXM2
(16 GB, but for ``v100-32gb``), A100 SXM (80 GB, but for ``a100-40gb``), L40S, H100 SXM, H200 SXM,
B200 SXM. Their memory is in graphc/ir/device_memory.py."""


def find_device(name: str) -> Device:
    """The device profile of that name; raises `OptionError` that lists the known ones."""
    return DEVICES[choose("device profile", name, tuple(DEVICES))]


DEFAULT_GPU = "h200"
"""What is planned for where no GPU is named."""


def profiles() -> tuple[str, ...]:
    """The names of all GPUs that can be planned for."""
    return tuple(device.name for device in DEVICES.values() if device.kind == "cuda")


def gpu_number(device: str, others: tuple[str, ...] = ()) -> int | None:
    """The number of the GPU that ``cuda`` or ``cuda:1`` names; None for ``cpu``.

    Raises `OptionError` for anything else, which names the `others` that may be given, too.
    """
    if device == "cpu":
        return None
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
        names = ("cpu", "cuda", "cuda:1", "auto", *others)
        near = did_you_mean(device, names, before="; ") if isinstance(device, str) else ""
        raise OptionError(f"unknown device {device!r}; choose one of: {', '.join(names)}{near}")
    return int(number or "0")


def planned_device(
    device: str | Device, roofline: str | None, kernels: Kernels = "native"
) -> Device:
    """The device profile that a plan for `device` is made for; of ``cuda`` the one of `roofline`,
    of ``cpu`` the one with these `kernels`.

    A device may be the name of a profile, too. Raises `OptionError` for unknown names, and for the
    roofline of a CPU with a GPU.
    """
    if device == CPU.name:
        return replace(CPU, kernels=kernels)
    if isinstance(device, str):
        device = DEVICES.get(device, device)
    if isinstance(device, Device):
        if roofline and find_device(roofline).kind != device.kind:
            raise OptionError(f"the roofline {roofline!r} is of another kind than {device.name}")
        return device
    gpu_number(device, profiles())
    found = find_device(roofline or DEFAULT_GPU)
    if found.kind != "cuda":
        gpus = ", ".join(profiles())
        raise OptionError(f"the roofline {roofline!r} is no GPU's; choose one of {gpus}")
    return found
