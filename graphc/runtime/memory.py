"""The memory that an arena may use: that of a device's profile, or that of this machine."""

from __future__ import annotations

from graphc.devices.device import Device
from graphc.devices.device_memory import DeviceMemory, gpu_memory, machine_memory
from graphc.errors import GpuUnavailable
from graphc.runtime.gpu.device import find_gpus


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
