"""The link between the memory of a device and the memory of its host."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.errors import OptionError, finite_number, truth, whole_number


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

    def __post_init__(self) -> None:
        for name in ("to_host", "to_device", "latency"):
            if finite_number(name, getattr(self, name)) == 0 and name != "latency":
                raise OptionError(f"{name} must be above 0 bytes per second, got 0")
        if self.host_bytes is not None:
            whole_number("host_bytes", self.host_bytes, 0)
        truth("both_ways", self.both_ways)

    def out_seconds(self, size: int) -> float:
        """Return the seconds of a copy of `size` bytes to the host."""
        return self.latency + size / self.to_host

    def in_seconds(self, size: int) -> float:
        """Return the seconds of a copy of `size` bytes to the device."""
        return self.latency + size / self.to_device
