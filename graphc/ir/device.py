"""What planning has to know of a device: how fast it is, and how much scratch a kernel may use."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import choose


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of arithmetic and memory, and the most bytes of scratch for one node."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    workspace_limit_bytes: int = 64 * 2**20

    def seconds(self, flops: int, moved_bytes: int) -> float:
        """The roofline: the larger of computing time and moving time."""
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)


CPU = Device("cpu", flops_per_second=1e11, bytes_per_second=2e10)
"""Two cores of a current server, to the order of magnitude."""

DEVICES = {
    device.name: device
    for device in (
        CPU,
        Device("v100", flops_per_second=15.7e12, bytes_per_second=900e9),
        Device("a100", flops_per_second=19.5e12, bytes_per_second=2039e9),
        Device("l40s", flops_per_second=91.6e12, bytes_per_second=864e9),
        Device("h100", flops_per_second=67e12, bytes_per_second=3350e9),
        Device("h200", flops_per_second=67e12, bytes_per_second=4800e9),
    )
}
"""Peaks of the vendor's data sheets, not measurements: float32 without tensor cores, and memory
bandwidth; V100 SXM2, A100 SXM 80 GB, L40S, H100 SXM, H200 SXM."""


def find_device(name: str) -> Device:
    """The device profile of that name; raises `OptionError` that lists the known ones."""
    return DEVICES[choose("device profile", name, tuple(DEVICES))]
