"""The memory of GPUs and of this machine, and the bytes of it that an arena can use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
GIB = 2**30

UNLIMITED = "max"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The bytes of a device's memory, and the number of them that an arena can use."""

    name: str
    total_bytes: int
    usable_bytes: int

    def spare_bytes(self, arena_bytes: int) -> int:
        """Return the usable bytes that an arena leaves free; negative if the arena does not fit."""
        return self.usable_bytes - arena_bytes


REPORTED_MIB = {
    "v100": 16160,
    "v100-32gb": 32510,
    "t4": 15360,
    "a100": 81920,
    "a100-40gb": 40960,
    "a10": 22731,
    "a40": 45634,
    "rtx-a5000": 24256,
    "rtx-a6000": 48685,
    "rtx-2080-ti": 11016,
    "rtx-3060": 12053,
    "rtx-3070": 7982,
    "rtx-3080": 10018,
    "rtx-3090": 24268,
    "l4": 23034,
    "l40s": 46068,
    "rtx-4060": 8188,
    "rtx-4070": 12282,
    "rtx-4070-ti": 12282,
    "rtx-4080": 16376,
    "rtx-4080-super": 16376,
    "rtx-4090": 24564,
    "h100": 81559,
    "h200": 143771,
    "gh200": 97871,
    "h20": 97871,
    "b200": 183359,
    "rtx-5070": 12227,
    "rtx-5070-ti": 16303,
    "rtx-5080": 16303,
    "rtx-5090": 32607,
}
"""MiB of each GPU as ``nvidia-smi`` reports them, the smallest number if drivers differ.

Data sheets round: 46,068 MiB are sold as 48 GB. The numbers of A100, H100, H200, L4, L40S and T4
are from https://thundergolfer.com/blog/nvidia-gpu-memory-capacity, which explains them. The others
are from published outputs of ``nvidia-smi``. V100 is the one of 16 GB, A100 of 80 GB."""


SOLD_GB = (8, 10, 11, 12, 16, 24, 32, 40, 48, 80, 96, 141, 180)
"""Memory sizes in data sheets, in GB."""


def sold_gigabytes(name: str) -> int:
    """Return the memory in GB with which a GPU of `REPORTED_MIB` is sold."""
    return min(size for size in SOLD_GB if size * 1024 >= REPORTED_MIB[name])


def gpu_memory(name: str, total_bytes: int | None = None) -> DeviceMemory | None:
    """Return the memory of a GPU: `total_bytes`, by default from `REPORTED_MIB`; None if unknown.

    An arena cannot use 1 GiB plus 1/128 of the memory, rounded up to MiB. The driver takes part of
    what ``nvidia-smi`` reports: CUDA has 250 MiB less on a T4 and 717 less on a B200. The context
    with the code of kernels takes 300 to 500 MiB. graphc's runtime leaves 512 MiB to libraries
    (``LIBRARY_BYTES`` in graphc/runtime/gpu/cuda.py). Screens and other processes on the same GPU
    take more.
    """
    if total_bytes is None:
        if name not in REPORTED_MIB:
            return None
        total_bytes = REPORTED_MIB[name] * MIB
    reserved = GIB + total_bytes // 128
    usable = max(0, total_bytes - reserved)
    return DeviceMemory(name, total_bytes, usable // MIB * MIB)


def machine_memory(root: str | os.PathLike[str] = "/") -> DeviceMemory:
    """Return the memory in bytes that an arena may use on this machine.

    It is the memory of the machine, or the limit of a control group of this process if that is
    lower, less a reserve. The reserve is 1 GiB, or an eighth of the memory if that is less. The
    interpreter with its libraries takes about 0.3 GiB of it; the rest is for the system and for
    batches that are fed. `root` is the folder that contains ``proc`` and ``sys``.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = min([physical, *_limits(Path(root))])
    usable = total - min(GIB, total // 8)
    return DeviceMemory("cpu", total, usable // MIB * MIB)


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups of the process and of their ancestors, in bytes.

    Version 2 has one hierarchy, in lines ``0::/path`` and files ``memory.max``; version 1 has one
    for memory, in lines ``4:memory:/path`` and files ``memory.limit_in_bytes``.
    https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or not readable
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, name = mount, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container, the path may be that of the host; the container's own group is the top.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            yield from _limit(folder / name)
            if folder == top:
                break


def _limit(file: Path) -> Iterator[int]:
    try:
        text = file.read_text().strip()
    except OSError:  # the group is not visible here, or it has no limit
        return
    if text != UNLIMITED:
        yield int(text)
