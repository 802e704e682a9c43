"""Policies of Chen et al., each as mirror counts of forward nodes.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost" (2016). A policy is a
function m from forward nodes to how often they may be recomputed; schedule.py makes the copies.

    mirror     m as marked by the user
    cheap      Sec. 4.2: m = 1 for cheap nodes, 0 for products
    segments   Alg. 1: m = 1 inside the user's segments, 0 for what leaves them
    sublinear  Alg. 3: m = 1 except for what crosses cuts that end stages of about b bytes. For
               b = 0 let x be the bytes that cross the cuts, and y those produced in the largest
               stage. b is searched around √(x y) by the grid of 6 of appendix A, and beyond it if
               an end of the grid is best. Each plan is judged by its peak live bytes
    recursive  Sec. 4.4: what crosses a cut of level l of the recursion has m = l, and the parts
               between the last cuts have m = their level. With k cuts per level, the memory of n
               equal layers is g(n) = k + g(n / (k + 1)) = k log n / log(k + 1). Each level costs
               one more forward pass

All take linear time in the graph, except for the plans that `sublinear` judges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphc.ir.graph import Graph, Node, Value
from graphc.memory.allocate import Allocation
from graphc.memory.forward_cuts import Cut, cuts
from graphc.memory.order.forward_passes import ForwardPass, forward_passes
from graphc.memory.order.place_updates import place_updates
from graphc.memory.schedule import materialise, mirrored_sequence
from graphc.memory.training_graph import TrainingGraph
from graphc.ops.float8 import casts_a_parameter

Counts = Mapping[Node, int]
"""Mirror counts (m of Alg. 2): how often each forward node may be recomputed; 0 if missing."""

GRID = 6
"""Number of budgets tried around the first estimate (appendix A)."""

PATIENCE, WALK = 2, 12
"""Beyond the grid: the number of successive worse budgets that ends the search, and the maximum
tried."""


def mirror(graph: Graph) -> Counts:
    """Return the counts that the user has marked with `graphc.mirror`."""
    return {node: node.mirror for node in graph.nodes if node.phase == "forward" and node.mirror}


def cheap(graph: Graph) -> Counts:
    """Return the counts of Sec. 4.2: save outputs of products, recompute cheap elementwise nodes.

    Losses and long sums are saved, as their outputs are small or needed at once.
    """
    cheap_kinds = ("follow", "lookup")
    forward = (node for node in graph.nodes if node.phase == "forward")
    return {node: 1 for node in forward if node.op.precision in cheap_kinds}


def segments(graph: Graph) -> Counts:
    """Return the counts of Alg. 1: save the values that leave a user's segment
    (`graphc.segment`)."""
    leaving: set[Node | None] = {value.node for value in graph.outputs.values()}
    for node in graph.nodes:
        if node.phase == "forward" and node.op.views is None:
            for value in node.inputs:
                # If a view leaves a segment, so do the bytes of what it views.
                source = value.root.node
                if source is not None and source.segment != node.segment:
                    leaving.add(source)
    return {
        node: 1
        for node in graph.nodes
        if node.phase == "forward" and node.segment and node not in leaving
    }


@dataclass(frozen=True, slots=True)
class Stages:
    """The cuts that end stages, and x and y of Alg. 3: bytes between all stages, and bytes of the
    largest."""

    cuts: tuple[Cut, ...]
    between: int
    largest: int


def with_budget(
    graph: Graph, forward_pass: ForwardPass, places: Sequence[Cut], budget: float
) -> Stages:
    """Return the stages of Alg. 3 for a budget: a stage ends at the first cut after `budget`
    bytes."""
    at = {cut.step: cut for cut in places}
    chosen: list[Cut] = []
    stage = between = largest = 0
    for step in forward_pass.steps:
        stage += sum(v.type.bytes for v in graph.nodes[step].outputs if _owns(v))
        # What follows the last cut is saved, not a stage, so neither x nor y counts it.
        if step in at and stage > budget:
            between += at[step].bytes
            largest = max(largest, stage)
            stage = 0
            chosen.append(at[step])
    return Stages(tuple(chosen), between, largest)


def _owns(value: Value) -> bool:
    return value.node is not None and value.node.op.views is None


def counts_of_stages(graph: Graph, passes: Iterable[tuple[ForwardPass, Stages]]) -> Counts:
    """Return counts that save the values that cross the stages' cuts, and recompute all others.

    The last stage of a pass is saved whole, as its gradient comes next and needs all of it at once.
    """
    counts: dict[Node, int] = {}
    for forward_pass, stages in passes:
        producers = {value.node for cut in stages.cuts for value in cut.crossing}
        last = stages.cuts[-1].step if stages.cuts else -1
        inside = (graph.nodes[step] for step in forward_pass.steps if step <= last)
        counts |= {node: 1 for node in inside if node not in producers}
    return counts


def sublinear(graph: Graph, judge: Callable[[Counts], int]) -> Counts:
    """Return the counts of Alg. 3, with the budget searched as in appendix A.

    `judge` returns the bytes of the plan of some counts. If the best of the six budgets is the
    first or the last, the grid continues beyond it.
    """
    passes = [(forward_pass, cuts(graph, forward_pass)) for forward_pass in forward_passes(graph)]
    # A budget of 0 ends a stage at every cut, which gives x and y.
    first = [with_budget(graph, forward_pass, places, 0) for forward_pass, places in passes]
    between, largest = sum(s.between for s in first), max((s.largest for s in first), default=0)
    centre = math.sqrt(between * largest)
    plans: dict[tuple[int, ...], Counts] = {}
    bytes_of: dict[tuple[int, ...], int] = {}

    def plan(exponent: int) -> tuple[int, ...]:
        # From centre / √2 to centre · √2 for exponents 0 to 5.
        budget = centre * 2 ** (exponent / (GRID - 1) - 0.5)
        stages = [
            (forward_pass, with_budget(graph, forward_pass, places, budget))
            for forward_pass, places in passes
        ]
        # Neighboring budgets often choose the same cuts, which are judged once.
        key = tuple(cut.step for _, stage in stages for cut in stage.cuts)
        if key not in plans:
            plans[key] = counts_of_stages(graph, stages)
            bytes_of[key] = judge(plans[key])
        return key

    grid = [plan(exponent) for exponent in range(GRID)]
    for edge, direction in ((0, -1), (GRID - 1, 1)):
        exponent, worse = edge, 0
        while worse < PATIENCE and abs(exponent - edge) < WALK:
            best = min(bytes_of.values())
            # If the best is elsewhere, nothing better is expected beyond this end.
            if exponent == edge and bytes_of[grid[edge]] > best:
                break
            exponent += direction
            worse = 0 if bytes_of[plan(exponent)] < best else worse + 1
    # Ties are broken by the cuts, so that the choice is deterministic.
    return plans[min(plans, key=lambda key: (bytes_of[key], key))]


def recursive(graph: Graph, per_level: int = 1) -> Counts:
    """Return the counts of Sec. 4.4: `per_level` checkpoints divide a pass, then each of its parts.

    A chain of n equal layers takes about k log n / log(k + 1) feature maps for k = `per_level`.
    """
    counts: dict[Node, int] = {}
    for forward_pass in forward_passes(graph):
        counts |= _nested(graph, forward_pass, cuts(graph, forward_pass), per_level)
    return counts


def _nested(
    graph: Graph, forward_pass: ForwardPass, places: Sequence[Cut], per_level: int
) -> dict[Node, int]:
    """Return the number of recomputations of each node, for a recursive division at the cuts.

    Each level divides a part of the forward pass into at most ``per_level + 1`` parts, and saves
    the values that cross the cuts between them. Part p ends at cut p. A saved value is recomputed
    once per level above the one that saves it, other nodes once per level.
    """
    kept: dict[Node, int] = {}
    level_of_part = [0] * (len(places) + 1)
    pending = [(0, len(places) + 1, 0)]
    while pending:
        first, last, level = pending.pop()
        parts = last - first
        if parts == 1:
            level_of_part[first] = level
            continue
        # No more checkpoints than there are cuts between these parts.
        pieces = min(per_level, parts - 1) + 1
        edges = [first + parts * i // pieces for i in range(pieces + 1)]
        for edge in edges[1:-1]:
            # Saved at this level: copies of deeper levels read these values without recomputation.
            for value in places[edge - 1].crossing:
                assert value.node is not None, "inputs and states do not cross"
                # A value that crosses several cuts is saved from the first level that needs it.
                kept[value.node] = min(level, kept.get(value.node, level))
        pending += [(start, end, level + 1) for start, end in itertools.pairwise(edges)]
    counts: dict[Node, int] = {}
    part = 0
    for step in forward_pass.steps:
        node = graph.nodes[step]
        counts[node] = kept.get(node, level_of_part[part])
        if part < len(places) and places[part].step == step:
            part += 1
    return counts


POLICIES: dict[str, Callable[[Allocation], Counts]] = {
    "none": lambda given: {},
    "mirror": lambda given: mirror(given.graph),
    "segments": lambda given: segments(given.graph),
    "cheap": lambda given: cheap(given.graph),
    "sublinear": lambda given: sublinear(given.graph, _judge(given)),
    "recursive": lambda given: recursive(given.graph),
}
"""The policies of Chen et al. by name. budget.py plans requests for bytes or work."""


def recompute(given: Allocation, policy: str) -> Graph:
    """Return a training graph, given without recomputation, with the recomputation of `policy`.

    16-bit copies of parameters are recomputed under every policy.
    """
    sequence = sequence_of(given, policy)
    if len(sequence) == len(given.graph.nodes):
        return given.graph
    return with_sequence(given.graph, sequence)


def sequence_of(given: Allocation, policy: str) -> list[int]:
    """Return the sequence of `policy`, as positions of the graph's nodes."""
    graph = given.graph
    casts = {node: 1 for node in graph.nodes if casts_a_parameter(node)}
    counts = {**casts, **POLICIES[policy](given)}
    return _mirrored(graph, counts) if counts else list(range(len(graph.nodes)))


def with_sequence(graph: Graph, sequence: list[int]) -> Graph:
    """Return the graph that executes a sequence, with updates after the last use of the replaced
    states."""
    return place_updates(materialise(graph, sequence))


def _mirrored(graph: Graph, counts: Counts) -> list[int]:
    return mirrored_sequence(graph, lambda node: counts.get(node, 0))


def _judge(given: Allocation) -> Callable[[Counts], int]:
    """Return a function from counts to peak live bytes, including workspaces and overwriting of
    operands."""
    graph_steps = TrainingGraph(given, lambda node: 0.0, feature_maps_only=False)
    return lambda counts: graph_steps.steps.peak(
        graph_steps.without_views(_mirrored(given.graph, counts))
    )
