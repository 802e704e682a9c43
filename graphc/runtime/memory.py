"""The memory that an arena may use: that of a device's profile, or that of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from graphc.errors import GpuUnavailable
from graphc.ir.device import Device
from graphc.ir.device_memory import GIB, MIB, DeviceMemory, gpu_memory
from graphc.runtime.gpu.device import find_gpus

UNLIMITED = "max"


def memory_of(device: Device) -> DeviceMemory | None:
    """Return the memory of the device that a plan is for; None if it is unknown.

    The memory of the CPU is that of this machine. For a GPU without a profile, it is that of the
    GPU of the same name in this machine.
    """
    if device.kind == "cpu":
        return machine_memory()
    known = gpu_memory(device.name)
    if known is not None:
        return known
    try:
        here = [gpu for gpu in find_gpus() if gpu.name == device.name]
    except GpuUnavailable:
        return None
    return gpu_memory(device.name, here[0].memory_bytes) if here else None


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
