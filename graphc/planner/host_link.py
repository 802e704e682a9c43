"""The link between the memory of a device and the memory of its host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostLink:
    """Rates of a link in bytes per second, the seconds that each copy takes besides, and the bytes
    of host memory (None if unlimited). With `both_ways`, copies in the two directions run at the
    same time at full rate; otherwise they take turns.
    """

    to_host: float
    to_device: float
    latency: float = 0.0
    host_bytes: int | None = None
    both_ways: bool = True

    def out_seconds(self, size: int) -> float:
        """Return the seconds of a copy of `size` bytes to the host."""
        return self.latency + size / self.to_host

    def in_seconds(self, size: int) -> float:
        """Return the seconds of a copy of `size` bytes to the device."""
        return self.latency + size / self.to_device
