"""What planning has to know of a device: how fast it is, and how much scratch a kernel may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates of arithmetic and memory, and the most bytes of scratch for one node."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    workspace_limit_bytes: int = 64 * 2**20


CPU = Device("cpu", flops_per_second=1e11, bytes_per_second=2e10)
"""Two cores of a current server, to the order of magnitude."""
