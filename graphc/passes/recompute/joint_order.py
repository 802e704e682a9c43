"""Order and recomputation decided together: a graph in the order that a plan of it ends in.

What is planned keeps the graph's order, and only what comes of it is put into a better one
(passes/order.py). There, weight gradients wait or hurry as fits what is computed again, which the
order given knows nothing of. So plans are made in that order too, and put into a better one again.

The order is that of the plan for one limit, halfway between the fewest bytes and those of a step
that keeps everything, on a scale of factors. It depends on no budget: an order of the budget's own
would make a larger budget slower by chance. Nor do plans in it count that are smaller than one of
the fewest live bytes in the order given: their bytes, given as a budget, might have no plan there.
Where the plan for that limit is no cheaper in the joint order, none is looked for in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from graphc.allocation.allocate import Allocation
from graphc.passes.place_updates import place_updates
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.passes.recompute.measured import Measured
from graphc.passes.recompute.points import Point, faster
from graphc.passes.recompute.sequence import materialise
from graphc.planning.sequence_planner import SequencePlanner


class JointOrder:
    """Plans in the joint order: `within` a budget, if faster than a plan that is known.

    `least` is the arena of the plan of the fewest live bytes in the order given.
    """

    def __init__(
        self, within: Callable[[int, bool, Point | None], Point | None], least: int
    ) -> None:
        self._within, self._least = within, least

    def faster(self, best: Point, budget: int) -> Point:
        """The best plan known for a budget, or a faster one in the joint order."""
        if budget < self._least:
            return best
        found = self._within(budget, False, best)
        counts = found is not None and found.arena_bytes >= self._least
        return faster(best, found if counts else None) or best


def is_cheaper(joint: SequencePlanner, given: SequencePlanner) -> bool:
    """Whether the plan for the limit halfway costs less in the joint order than in that given."""
    limit = _halfway(given)
    first, second = joint.plan(limit), given.plan(limit)
    return first is not None and second is not None and first.extra_cost < second.extra_cost


def _halfway(planner: SequencePlanner) -> int:
    return math.isqrt(planner.floor * planner.once.peak_bytes)


def in_order_of_a_plan(
    planner: SequencePlanner, graph_steps: GraphSteps, measured: Measured
) -> Allocation | None:
    """The graph of the steps in the order that the plan for the limit halfway ends in.

    None where there is no such plan, no other order, or more than one forward pass.
    """
    allocation = graph_steps.allocation
    graph = allocation.graph
    plan = planner.plan(_halfway(planner))
    if plan is None or len(graph_steps.steps.runs) > 1:
        return None
    sequence = graph_steps.with_views(plan.sequence)
    planned = materialise(graph, sequence)
    originals = dict(
        zip(
            (node for node in planned.nodes if node.copy_of is None),
            (graph.nodes[position] for position in dict.fromkeys(sequence)),
            strict=True,
        )
    )
    found = measured.reordered(place_updates(planned))
    nodes = tuple(originals[node] for node in found.nodes if node.copy_of is None)
    return None if nodes == graph.nodes else allocation.in_order(nodes)
