"""The order of nodes in which the fewest bytes are live at one time, without recomputation.

Any order that data and effects allow gives the same bits: sums keep their operands, and random ops
draw by stream and element. What differs is how long values live: a weight gradient before or after
the input gradient, a parameter's update early, one branch before another.

The order is a partial one on the nodes that are no views: u before v where v reads what u makes,
and, which data does not say,

    an update behind all other readers of the state that it replaces, and
    a copy behind what it is a copy of, if that stood before it

graphc.scheduling looks for a linear extension of it with a low peak, by bytes as training_graph.py
counts them. Those are the allocator's, but for concatenations: the allocator decides for each
whether its parts lie inside it. So there are two models, one in which parts never do and one in
which they always do. The second is searched too where parts save a thousandth, and `live_bytes` of
the allocator picks the best of what is found and the order given.

Where layers recur over time, the search begins twice: from the order given, and from that by layers
with gradients of parameters last (scheduling/layers.py).

Fewer live bytes need not be a smaller arena, since packing may lose more: `reordered` takes the
order found only where its packed arena is smaller than that of the order given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphc.allocation.allocate import Allocation
from graphc.remat.training_graph import TrainingGraph
from graphc.scheduling import Arc, Precedence, layer_by_layer, least_order, when_asked
from graphc.scheduling.problem import Problem

SAVED_BY_PARTS = 0.001
"""The part of the live bytes from which on parts inside concatenations matter to an order."""


def reordered(given: Allocation) -> Allocation:
    """The graph in an order with a smaller packed arena, or as it is given where none is found.

    Live bytes are those of an `Allocation`: with overwriting, views, parts inside concatenations
    and workspaces. Neither they nor the arena grow.
    """
    found = with_least_peak(given)
    if found is given:
        return given
    arena = found.arena_bytes("packed")
    # No packing is below the live bytes, so the order given is packed only where it may win.
    is_smaller = arena < given.live_bytes or arena < given.arena_bytes("packed")
    return found if is_smaller else given


def by_layers(given: Allocation) -> list[Allocation]:
    """The graph with layers that recur over time one after another (scheduling/layers.py).

    For plans that make values again: where that lowers the peak, with forward steps that only their
    own gradients ask for behind the turn; and with the whole forward pass first. Empty for graphs
    without such layers, for those with copies, which stand where they are needed (as 16-bit ones of
    parameters), and for several forward passes.
    """
    return _by_layers(_steps_of(given), at_once=True)


def _steps_of(given: Allocation) -> TrainingGraph:
    return TrainingGraph(given, lambda node: 0.0, feature_maps_only=False)


def _by_layers(graph_steps: TrainingGraph, at_once: bool) -> list[Allocation]:
    graph, steps = graph_steps.graph, graph_steps.steps
    if any(node.copy_of is not None for node in graph.nodes):
        return []
    states = graph.states
    parameters = {graph_steps.numbers[state] for state in states if state.role == "parameter"}
    problem = Precedence(steps, tuple(_arcs(graph_steps)), steps.fixed_bytes)
    order = layer_by_layer(problem, sorted(parameters), at_once)
    if order is None:
        return []
    orders = [order]
    late = when_asked(problem, order)
    if at_once and steps.peak(late) < steps.peak(order):
        orders.insert(0, late)
    return [_in_order(graph_steps, each) for each in orders]


def with_least_peak(given: Allocation) -> Allocation:
    """The graph in an order with fewer live bytes, or as it is given where none is found.

    It is looked for from the order given, and from that by layers.
    """
    graph_steps = _steps_of(given)
    others = map(_steps_of, _by_layers(graph_steps, at_once=False))
    found = map(_improved, (graph_steps, *others))
    return min([given, *found], key=lambda order: order.live_bytes)


def _improved(graph_steps: TrainingGraph) -> Allocation:
    """What the search makes of an order, or that order."""
    given = graph_steps.allocation
    arcs = tuple(_arcs(graph_steps))

    def found(steps: Problem) -> Allocation:
        order = least_order(Precedence(steps, arcs, steps.fixed_bytes))
        return _in_order(graph_steps, order)

    if all(node.op.gathers is None for node in given.graph.nodes):
        return found(graph_steps.steps)
    # The allocator puts parts inside concatenations where that pays, which no steps know: one
    # model counts them twice, the other as if it always did.
    copied = graph_steps.steps.peak(range(len(graph_steps.steps)))
    models = [graph_steps.steps]
    if copied - given.live_bytes > SAVED_BY_PARTS * copied:
        # Neither model is right for all: each proposes an order, and the allocator judges both.
        models.append(graph_steps.bounding_steps)
    # The order given comes first, so it stays where others only equal it.
    return min([given, *map(found, models)], key=lambda order: order.live_bytes)


def _in_order(graph_steps: TrainingGraph, order: Sequence[int]) -> Allocation:
    """The allocation of the steps in another order, or the one given where that is the same."""
    given = graph_steps.allocation
    if all(index == step for index, step in enumerate(order)):
        return given
    return given.in_order(given.graph.nodes[step] for step in graph_steps.with_views(order))


def _arcs(graph_steps: TrainingGraph) -> Iterator[Arc]:
    """Pairs of steps, the first of which must run before the second though data does not say so."""
    graph = graph_steps.graph
    consumers: dict[int, list[int]] = {}
    for step, inputs in enumerate(graph_steps.steps.inputs):
        for number in inputs:
            consumers.setdefault(number, []).append(step)
    for step, position in enumerate(graph_steps.positions):
        node = graph.nodes[position]
        for state in node.replaced.values():
            for consumer in consumers[graph_steps.numbers[state]]:
                # The update itself reads the state too.
                if consumer != step:
                    yield consumer, step
        if node.copy_of is not None:
            original = graph_steps.place.get(graph.position.get(node.copy_of, -1))
            # Where the copy stood first, the arc would forbid the order given, which has to stay
            # legal.
            if original is not None and original < step:
                yield original, step
