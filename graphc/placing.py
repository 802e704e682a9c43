"""How values are placed and what nodes cost: the options of a plan that say nothing of the step."""

from __future__ import annotations

from functools import partial

from graphc.allocation.allocate import Allocation
from graphc.errors import OptionError, choose
from graphc.ir.device import Device, find_device, target_of
from graphc.ir.graph import Graph
from graphc.ir.verify import verify
from graphc.passes.fusion.elementwise import fuse
from graphc.passes.fusion.reductions import fuse_reductions
from graphc.passes.order import reordered, with_least_peak
from graphc.passes.pipeline import Dump, run_passes
from graphc.passes.recompute import Goal, OptimalPlanner
from graphc.passes.updates_together import updates_together
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import Costs, load_costs
from graphc.plans.memory_plan import ALLOCATE, Allocate, check_alignment
from graphc.runtime.bind import find
from graphc.runtime.gpu.device import profile_of
from graphc.target import target_of as target_of_device


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
        self.target = target_of_device(self.device)
        self._allocation: Allocation | None = None
        if self.alignment % self.target.least_alignment:
            raise OptionError(
                f"on a GPU alignment is a multiple of {self.target.least_alignment}, as "
                f"cuBLAS asks of its workspaces, got {alignment}"
            )
        if fuse is not None and not isinstance(fuse, bool):
            raise OptionError(f"fuse is True, False or None, got {fuse!r}")
        is_usual = self.target.fuses
        self.fuses = is_usual if fuse is None else fuse
        self.settings = {"fuse": self.fuses} if self.fuses != is_usual else {}
        self.costs = CostModel(find_device(roofline) if roofline else self.device, measured)

    def fused(self, graph: Graph, recomputes: bool, dumps: Dump) -> Graph:
        """The graph with groups of elementwise nodes as one, where that was asked for."""
        if not self.fuses:
            return graph
        graph = run_passes(
            graph, {"fuse": partial(fuse, target=self.target, recomputes=recomputes)}, dumps
        )
        if self.target.has_epilogues:
            graph = run_passes(
                graph,
                {
                    "fuse-reductions": partial(
                        fuse_reductions, target=self.target, recomputes=recomputes
                    )
                },
                dumps,
            )
        return run_passes(graph, ["inline-constants"], dumps)

    def planner(self, graph: Graph) -> OptimalPlanner:
        order = with_least_peak if self.reorders else None
        return OptimalPlanner(self.allocation(graph), self.costs, self.allocate, order)

    def allocation(self, graph: Graph) -> Allocation:
        """The allocation of a graph, the last one if it is of the same."""
        if self._allocation is None or self._allocation.graph is not graph:
            self._allocation = Allocation(graph, self.target, self.alignment)
        return self._allocation

    def ordered(self, graph: Graph) -> Graph:
        """The graph in the order to run, verified."""
        if not self.reorders:
            return graph
        self._allocation = reordered(self.allocation(graph))
        verify(self._allocation.graph)
        return self._allocation.graph

    def with_updates_together(self, graph: Graph, goal: Goal | None) -> Graph:
        """The graph as a GPU runs it with fewer launches, verified; a CPU has none to save."""
        if not self.reorders:
            return graph
        self._allocation = updates_together(self.allocation(graph), goal)
        verify(self._allocation.graph)
        return self._allocation.graph


def _target_of(device: str | Device, roofline: str | None) -> Device:
    """What a plan is made for; ``auto`` is the GPU of this machine, or else the CPU."""
    if device == "auto":
        gpu = find("auto")
        device = "cpu" if gpu is None else profile_of(gpu)
    return target_of(device, roofline)
