"""Cost model of nodes in seconds: measured times if available, else the roofline of a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from graphc.devices.device import CPU, Device
from graphc.devices.links import host_link, links_of
from graphc.ir.graph import Graph, Node
from graphc.ir.types import Layout, contiguous_strides
from graphc.planner.host_link import HostLink
from graphc.plans.costs import MeasuredCosts, node_key
from graphc.plans.exchange_times import exchange_seconds
from graphc.plans.memory_plan import MemoryPlan, Recomputation


def seconds(node: Node, device: Device, tf32: bool = False) -> float:
    """Return the seconds of a node by the roofline: the maximum of compute and memory time.

    Views, ends of collectives, and copies between device and host take 0; copies run beside the
    nodes of a step (`graphc.plans.copy_model`). Contractions run at the rate of tensor cores if
    those accept the operands; `tf32` says whether they accept float32.
    """
    viewed = node.viewed
    if viewed is not None:
        in_one_piece = Layout(0, contiguous_strides(viewed.type))
        if node.op.view(node, in_one_piece) is not None:
            return 0.0
    if node.op.awaits or node.op.copies_to:  # a result stays in place in a plan that overwrites
        return 0.0
    if node.op.sent_bytes(node):
        return exchange_seconds(node, links_of(device))
    cost = node.op.cost(node)
    rate = device.product_rate(node.inputs[0].type.dtype, tf32) if node.op.contracts(node) else None
    return device.seconds(cost.flops, cost.bytes_read + cost.bytes_written, rate)


@dataclass(frozen=True)
class CostModel:
    """Seconds of a node on a device, from its peak rates or from measurements.

    A node whose key was not measured takes its roofline time multiplied by a ratio. The ratio is
    the median of measured over roofline time for the same op, or for all ops if that op was not
    measured.
    """

    device: Device = CPU
    measured: MeasuredCosts | None = None
    tf32: bool = False
    """True if products may round float32 operands to 10 bits."""

    @classmethod
    def of(
        cls, plan: MemoryPlan, device: Device | None = None, measured: MeasuredCosts | None = None
    ) -> CostModel:
        """Return the cost model for a plan, by default on the device of the plan."""
        return cls(device or plan.device, measured, plan.settings.get("precision") == "tf32")

    def seconds(self, node: Node) -> float:
        """Return the seconds of a node; 0 if it runs no kernel."""
        if self.measured is None or node.host_copy is not None:
            return seconds(node, self.device, self.tf32)
        found = self._measured_seconds.get(node_key(node))
        if found is not None:
            return found
        ratio = self._op_ratios.get(node.op.name, self._ratio)
        return ratio * seconds(node, self.device, self.tf32)

    @property
    def host_link(self) -> HostLink:
        """The link between the device and host memory: measured if available, else by the
        architecture of the device."""
        measured = self.measured.host_link if self.measured else None
        return measured or host_link(self.device)

    @cached_property
    def _measured_seconds(self) -> Mapping[str, float]:
        entries = self.measured.measured if self.measured else ()
        return {entry.key: entry.seconds for entry in entries}

    @cached_property
    def _ratios(self) -> Mapping[str, list[float]]:
        """Return op → ratios of measured to roofline seconds, one for each measured key."""
        ratios: dict[str, list[float]] = {}
        for entry in self.measured.measured if self.measured else ():
            roofline = self.device.seconds(entry.flops, entry.bytes)
            if roofline:
                ratios.setdefault(entry.op, []).append(entry.seconds / roofline)
        return ratios

    @cached_property
    def _op_ratios(self) -> Mapping[str, float]:
        return {op: median(ratios) for op, ratios in self._ratios.items()}

    @cached_property
    def _ratio(self) -> float:
        """Return the median ratio over all ops that run kernels.

        Views take no time, so their ratios are not counted.
        """
        ratios = [ratio for found in self._ratios.values() for ratio in found if ratio]
        return median(ratios) if ratios else 1.0

    def __str__(self) -> str:
        roofline = f"roofline of {self.device.name}"
        if self.measured is None:
            return roofline
        name, count = self.measured.device["name"], len(self.measured.measured)
        link = ", host link measured" if self.measured.host_link else ""
        if not count:
            return roofline + link
        others = "" if name == self.device.name else f", others from the {roofline}"
        return f"{count} kernels measured on {name}{others}{link}"


def recomputation(graph: Graph, costs: CostModel) -> Recomputation:
    """Return the number of recomputed nodes, and the fractions of flops and seconds they add."""
    flops = extra_flops = 0
    seconds: list[float] = []
    again: list[float] = []
    for node in graph.nodes:
        node_flops, node_seconds = node.op.cost(node).flops, costs.seconds(node)
        if node.phase == "mirror":
            extra_flops += node_flops
            again.append(node_seconds)
        else:
            flops += node_flops
            seconds.append(node_seconds)
    # `fsum` rounds once, so the result does not depend on the order of nodes.
    part = math.fsum(again) / (math.fsum(seconds) or 1.0)
    return Recomputation(len(again), extra_flops / max(flops, 1), part)
