"""Links between ranks, and between a device and its host: latency and bandwidth, by device.

Numbers of links between ranks are from data sheets and standards, in one direction, not
measurements. Links inside a machine are NVLink if the device has it, else PCIe, or the shared
memory of processes. Links between machines are one network adapter per GPU.

Links to the host are PCIe with 16 lanes, of the generation that GPUs of an architecture have. Of 16
GB/s in generation 3, copies of pinned memory reach about 12.5; later generations double both. On an
H200, 53.7 GB/s were measured in one direction, and 89.8 for both at once
(docs/benchmarks.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from graphc.devices.device import Device
from graphc.planner.host_link import HostLink


@dataclass(frozen=True, slots=True)
class Link:
    """A link of a rank: seconds until the first byte arrives, and bytes per second."""

    latency: float
    bytes_per_second: float

    def seconds(self, messages: float, sent_bytes: float) -> float:
        """Return the seconds for `messages` consecutive messages with `sent_bytes` in total."""
        return messages * self.latency + sent_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Links:
    """The link inside a machine with its number of ranks, and the one between machines."""

    inside: Link
    ranks_inside: int
    between: Link

    def slowest(self, ranks: int) -> Link:
        """Return the link that limits communication among `ranks` ranks."""
        return self.inside if ranks <= self.ranks_inside else self.between


SHARED_MEMORY = Link(20e-6, 4e9)
ETHERNET_25 = Link(30e-6, 3.1e9)
ETHERNET_100 = Link(10e-6, 12.5e9)
INFINIBAND_200 = Link(5e-6, 25e9)
INFINIBAND_400 = Link(5e-6, 50e9)


def _pcie(generation: int) -> Link:
    """Return PCIe with 16 lanes: 16 GB/s in generation 3, doubled in each later generation."""
    return Link(5e-6, 16e9 * 2 ** (generation - 3))


def _nvlink(bandwidth: float) -> Link:
    return Link(3e-6, bandwidth)


LINKS = {
    "cpu": Links(SHARED_MEMORY, 8, ETHERNET_25),
    "v100": Links(_nvlink(150e9), 8, ETHERNET_100),
    "v100-32gb": Links(_nvlink(150e9), 8, ETHERNET_100),
    "t4": Links(_pcie(3), 8, ETHERNET_100),
    "a100": Links(_nvlink(300e9), 8, INFINIBAND_200),
    "a100-40gb": Links(_nvlink(300e9), 8, INFINIBAND_200),
    "rtx-3090": Links(_pcie(4), 8, ETHERNET_25),
    "l4": Links(_pcie(4), 8, ETHERNET_100),
    "l40s": Links(_pcie(4), 8, INFINIBAND_200),
    "rtx-4090": Links(_pcie(4), 8, ETHERNET_25),
    "h100": Links(_nvlink(450e9), 8, INFINIBAND_400),
    "h200": Links(_nvlink(450e9), 8, INFINIBAND_400),
    "gh200": Links(_nvlink(450e9), 8, INFINIBAND_400),
    "h20": Links(_nvlink(450e9), 8, INFINIBAND_400),
    "b200": Links(_nvlink(900e9), 8, INFINIBAND_400),
    "rtx-5090": Links(_pcie(5), 8, ETHERNET_25),
}
"""Device profile → its links, for machines with up to 8 such devices."""


def links_of(device: Device) -> Links:
    """Return the links of a device.

    Unknown devices have PCIe 4 inside a machine, and 25 Gb/s between machines.
    """
    return LINKS.get(device.name, Links(_pcie(4), 8, ETHERNET_25))


COPY_LATENCY = 1e-5
"""The seconds that a copy between device and host takes besides its bytes."""

CPU_COPY_RATE = 5e9
"""The bytes per second of one thread that copies memory of the reference CPU."""


def host_link(device: Device) -> HostLink:
    """Return the link between a device and host memory, of unlimited size."""
    if device.kind == "cpu":
        return HostLink(CPU_COPY_RATE, CPU_COPY_RATE, COPY_LATENCY)
    generation = 3 if device.architecture < 80 else 4 if device.architecture < 90 else 5
    rate = 12.5e9 * 2 ** (generation - 3)
    return HostLink(rate, rate, COPY_LATENCY)
