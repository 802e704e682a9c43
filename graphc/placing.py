"""How values are placed and what nodes cost: the options of a plan that say nothing of the step."""

from __future__ import annotations

from functools import partial

from graphc.errors import OptionError, choose
from graphc.ir.device import Device, find_device, target_of
from graphc.ir.graph import Graph
from graphc.ir.verify import verify
from graphc.passes.order import reordered, with_least_peak
from graphc.passes.pipeline import Dump, run_passes
from graphc.passes.recompute import Goal, OptimalPlanner
from graphc.passes.updates_together import updates_together
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs, load_costs
from graphc.plans.memory_plan import ALLOCATE, Allocate, check_alignment
from graphc.runtime.bind import find
from graphc.runtime.gpu.device import profile_of

GPU_ALIGNMENT = 256
"""Bytes; what cuBLAS asks of a workspace."""


class Placing:
    """How values are placed and what nodes cost, checked."""

    def __init__(
        self,
        allocate: Allocate,
        alignment: int,
        costs: Costs | None,
        roofline: str | None,
        reorder: bool,
        fuse: bool | None,
        device: str | Device,
    ) -> None:
        choose("allocate", allocate, ALLOCATE)
        self.allocate, self.alignment = allocate, check_alignment(alignment)
        self.reorders = reorder and allocate == "packed"
        measured = None if costs is None else load_costs(costs)
        self.device = _target_of(device, roofline)
        if self.device.kind == "cuda" and self.alignment % GPU_ALIGNMENT:
            raise OptionError(
                f"on a GPU alignment is a multiple of {GPU_ALIGNMENT}, as cuBLAS asks of its "
                f"workspaces, got {alignment}"
            )
        if fuse is not None and not isinstance(fuse, bool):
            raise OptionError(f"fuse is True, False or None, got {fuse!r}")
        is_usual = self.device.kind == "cuda"
        self.fuses = is_usual if fuse is None else fuse
        self.settings = {"fuse": self.fuses} if self.fuses != is_usual else {}
        self.costs = CostModel(find_device(roofline) if roofline else self.device, measured)

    def fused(self, graph: Graph, recomputes: bool, dumps: Dump) -> Graph:
        """The graph with groups of elementwise nodes as one, where that was asked for."""
        suffix = "-recomputed" if recomputes else ""
        names = [f"fuse{suffix}"]
        if self.device.kind == "cuda":
            names.append(f"fuse-reductions{suffix}")
        return run_passes(graph, (*names, "inline-constants"), dumps) if self.fuses else graph

    def planner(self, graph: Graph) -> OptimalPlanner:
        order = partial(with_least_peak, alignment=self.alignment, device=self.device)
        return OptimalPlanner(
            graph,
            self.costs,
            self.allocate,
            self.alignment,
            order if self.reorders else None,
            self.device,
        )

    def ordered(self, graph: Graph) -> Graph:
        """The graph in the order to run, verified."""
        if not self.reorders:
            return graph
        graph = reordered(graph, self.alignment, self.device)
        verify(graph)
        return graph

    def with_updates_together(self, graph: Graph, goal: Goal | None) -> Graph:
        """The graph as a GPU runs it with fewer launches, verified; a CPU has none to save."""
        if self.device.kind == "cpu" or not self.reorders:
            return graph
        graph = updates_together(graph, self.alignment, self.device, goal)
        verify(graph)
        return graph


def _target_of(device: str | Device, roofline: str | None) -> Device:
    """What a plan is made for; ``auto`` is the GPU of this machine, or else the CPU."""
    if device == "auto":
        gpu = find("auto")
        device = "cpu" if gpu is None else profile_of(gpu)
    return target_of(device, roofline)
