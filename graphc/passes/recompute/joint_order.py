"""Order and recomputation decided together: a graph in the order that a plan of it ends in.

What is planned keeps the graph's order, and only what comes of it is put into a better one
(passes/order.py). There, weight gradients wait or hurry as fits what is computed again, which the
order given knows nothing of. So plans are made in that order too, and put into a better one again,
as long as that is cheaper.

The plans that decide so are those for one limit, halfway between the planner's floor and the bytes
of a step that keeps everything, on a scale of factors. It depends on no budget, nor on what was
planned before: an order of the budget's own would make a larger budget slower by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Node
from graphc.passes.place_updates import place_updates
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.passes.recompute.measured import Measured
from graphc.passes.recompute.sequence import materialise
from graphc.planning.sequence_planner import SequencePlan, SequencePlanner

ROUNDS = 3
"""Orders that are tried, each that of a plan in the one before."""


class Searched(Protocol):
    """A graph's steps and the planner of them, by seconds."""

    @property
    def searched(self) -> tuple[GraphSteps, SequencePlanner]: ...


AnySearched = TypeVar("AnySearched", bound=Searched)


def in_joint_order(
    given: AnySearched, measured: Measured, in_order: Callable[[Allocation], AnySearched]
) -> AnySearched | None:
    """The last of the orders in which the plan for the limit halfway costs less than in the one
    before, as `in_order` makes it; None where there is none, or several forward passes."""
    graph_steps, planner = given.searched
    if len(graph_steps.steps.runs) != 1:
        return None
    limit = math.isqrt(planner.floor * planner.once.peak_bytes)
    last: AnySearched | None = None
    plan = planner.plan_for(limit)
    for _ in range(ROUNDS):
        found = _order_of(plan, graph_steps, measured) if plan else None
        if plan is None or found is None:
            break
        joint = in_order(found)
        graph_steps, planner = joint.searched
        cheaper = planner.plan_for(limit)
        if cheaper is None or cheaper.extra_cost >= plan.extra_cost:
            break
        last, plan = joint, cheaper
    return last


def _order_of(plan: SequencePlan, graph_steps: GraphSteps, measured: Measured) -> Allocation | None:
    """The graph in the order in which its nodes run first in the better order of a plan."""
    allocation = graph_steps.allocation
    graph = allocation.graph
    sequence = graph_steps.with_views(plan.sequence)
    planned = materialise(graph, sequence)
    firsts: dict[int, Node] = {}
    for position, node in zip(sequence, planned.nodes, strict=True):
        firsts.setdefault(position, node)
    positions = {node: position for position, node in firsts.items()}
    found = measured.reordered(place_updates(planned))
    order = [positions[node] for node in found.nodes if node in positions]
    # Views stand where steps need them, as in any order of steps: copies of theirs are gone.
    order = graph_steps.with_views(graph_steps.without_views(order))
    nodes = tuple(graph.nodes[position] for position in order)
    return None if nodes == graph.nodes else allocation.in_order(nodes)
