"""Node orders with few live bytes, without recomputation.

Every order that data and effects allow gives the same bits: sums keep their operands, and random
ops draw by stream and element. Orders differ in live ranges: a weight gradient before or after the
input gradient, a parameter's update early, one branch before another.

The constraints are a partial order on the nodes that are not views. u precedes v if v reads what u
produces. Two constraints are not in the data:

    an update follows all other consumers of the state that it replaces, and
    a copy follows its original, if it did so in the given order

graphc.planner.order searches for a linear extension with a low peak, in the bytes that
training_graph.py counts. They differ from the allocator's only for concatenations, since the
allocator decides for each whether its parts are placed inside. So there are two models, in which
parts are never or always inside. The second is searched too if parts save a thousandth of the
bytes. The allocator's `live_bytes` picks the best of the orders found and the given one.

If layers recur over time, the search starts twice: from the given order, and from the order layer
by layer with parameter gradients last (planner/order/layers.py).

Fewer live bytes need not mean a smaller arena, since packing may lose more. `reordered` takes the
found order only if its packed arena is smaller than that of the given order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.planner.order import Arc, Precedence, as_late_as_needed, layer_by_layer, least_order
from graphc.planner.problem import Problem

SAVED_BY_PARTS = 0.001
"""Fraction of the live bytes that placing parts inside concatenations must save to be modeled."""


def reordered(given: Allocation) -> Allocation:
    """Return the graph in an order with a smaller packed arena, or as given if none is found.

    Live bytes are those of an `Allocation`: with overwriting, views, parts inside concatenations
    and workspaces. Neither live bytes nor the arena grow.
    """
    found = with_least_peak(given)
    if found is given:
        return given
    arena = found.arena_bytes("packed")
    # An arena is never below the live bytes. So the given order is packed only if it may be
    # smaller.
    is_smaller = arena < given.live_bytes or arena < given.arena_bytes("packed")
    return found if is_smaller else given


def by_layers(given: Allocation) -> list[Allocation]:
    """Return orders that run recurrent layers one after another (planner/order/layers.py).

    These are for schedules with recomputation. The last order has the whole forward pass first. A
    second order precedes it if that lowers the peak: forward steps that only their own gradients
    use then follow the boundary. The list is empty for graphs without such layers, with several
    forward passes, or with copies, such as 16-bit ones of parameters, which are already where they
    are needed.
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
    late = as_late_as_needed(problem, order)
    if at_once and steps.peak(late) < steps.peak(order):
        orders.insert(0, late)
    return [_in_order(graph_steps, each) for each in orders]


def with_least_peak(given: Allocation) -> Allocation:
    """Return the graph in an order with fewer live bytes, or as given if none is found.

    The search starts from the given order, and from the order layer by layer.
    """
    graph_steps = _steps_of(given)
    others = map(_steps_of, _by_layers(graph_steps, at_once=False))
    found = map(_improved, (graph_steps, *others))
    return min([given, *found], key=lambda order: order.live_bytes)


def least_peak(given: Allocation) -> int:
    """Return the fewest live bytes of the orders that `with_least_peak` finds, as steps count them:
    operands of concatenations have bytes beside them."""
    graph_steps = _steps_of(given)
    others = map(_steps_of, _by_layers(graph_steps, at_once=False))
    return min(each.steps.peak(_least_order(each, each.steps)) for each in (graph_steps, *others))


def _least_order(graph_steps: TrainingGraph, steps: Problem) -> Sequence[int]:
    """Return an order of the graph with a low peak in the bytes of `steps`."""
    return least_order(Precedence(steps, tuple(_arcs(graph_steps)), steps.fixed_bytes))


def _improved(graph_steps: TrainingGraph) -> Allocation:
    """Return the allocation of the best order that the search finds, or the given allocation."""
    given = graph_steps.allocation

    def found(steps: Problem) -> Allocation:
        return _in_order(graph_steps, _least_order(graph_steps, steps))

    if all(node.op.gathers is None for node in given.graph.nodes):
        return found(graph_steps.steps)
    # The allocator puts parts inside concatenations where that saves bytes, which steps do not
    # model. One model counts parts twice, the other as if they were always inside.
    copied = graph_steps.steps.peak(range(len(graph_steps.steps)))
    models = [graph_steps.steps]
    if copied - given.live_bytes > SAVED_BY_PARTS * copied:
        # Neither model is always exact, so an order is searched with each, and live bytes of the
        # allocator decide.
        models.append(graph_steps.bounding_steps)
    # The given order comes first, so that it is returned if others have equal bytes.
    return min([given, *map(found, models)], key=lambda order: order.live_bytes)


def _in_order(graph_steps: TrainingGraph, order: Sequence[int]) -> Allocation:
    """Return the allocation of the graph in another order of steps; the given one if the order is
    the same."""
    given = graph_steps.allocation
    if all(index == step for index, step in enumerate(order)):
        return given
    return given.in_order(given.graph.nodes[step] for step in graph_steps.with_views(order))


def _arcs(graph_steps: TrainingGraph) -> Iterator[Arc]:
    """Yield pairs (a, b) of steps such that a must precede b although no value connects them."""
    graph = graph_steps.graph
    consumers: dict[int, list[int]] = {}
    for step, inputs in enumerate(graph_steps.steps.inputs):
        for number in inputs:
            consumers.setdefault(number, []).append(step)
    for step, position in enumerate(graph_steps.positions):
        node = graph.nodes[position]
        for state in node.replaced.values():
            for consumer in consumers[graph_steps.numbers[state]]:
                # The update reads the state too.
                if consumer != step:
                    yield consumer, step
        if node.copy_of is not None:
            original = graph_steps.place.get(graph.position.get(node.copy_of, -1))
            # If the copy came first, the arc would forbid the given order, which must stay legal.
            if original is not None and original < step:
                yield original, step
