"""The order of nodes in which the fewest bytes are live at one time, without recomputation.

Any order that data and effects allow gives the same bits: sums keep their operands, and random ops
draw by stream and element. What differs is how long values live: a weight gradient before or after
the input gradient, a parameter's update early, one branch before another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph
from graphc.passes.recompute.graph_steps import GraphTape
from graphc.planning.order import Arc, Precedence, least_order
from graphc.planning.steps import Tape

SAVED_BY_PARTS = 0.001
"""Part of the live bytes from which on parts inside concatenations matter to an order."""


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


def with_least_peak(given: Allocation) -> Allocation:
    """The graph in an order with fewer live bytes, or as it is given where none is found."""
    graph = given.graph
    tape = GraphTape(given, lambda node: 0.0, feature_maps_only=False)
    arcs = tuple(_arcs(tape))

    def found(steps: Tape) -> Allocation:
        order = least_order(Precedence(steps, arcs, steps.fixed_bytes))
        return given.of(_in_order(tape, order))

    if all(node.op.gathers is None for node in graph.nodes):
        return found(tape.tape)
    # The allocator puts parts inside concatenations where that pays, which no tape knows: one
    # counts them twice, the other one as if it always did.
    placed, copied = given.live_bytes, tape.tape.peak(range(len(tape.tape)))
    tapes = [tape.tape]
    if copied - placed > SAVED_BY_PARTS * copied:
        tapes.append(tape.bounding_tape())
    return min([given, *map(found, tapes)], key=lambda order: order.live_bytes)


def _in_order(tape: GraphTape, order: Sequence[int]) -> Graph:
    """The graph of a tape with its steps in another order; itself where that is the same."""
    graph = tape.graph
    if all(index == step for index, step in enumerate(order)):
        return graph
    return replace(graph, nodes=tuple(graph.nodes[step] for step in tape.sequence(order)))


def _arcs(tape: GraphTape) -> Iterator[Arc]:
    """What data does not say: updates run after all readers of their state, copies after what they
    are copies of."""
    graph = tape.graph
    readers: dict[int, list[int]] = {}
    for step, inputs in enumerate(tape.tape.inputs):
        for number in inputs:
            readers.setdefault(number, []).append(step)
    for index, step in enumerate(tape.steps):
        node = graph.nodes[step]
        for state in node.replaced.values():
            for reader in readers[tape.numbers[state]]:
                if reader != index:
                    yield reader, index
        if node.copy_of is not None:
            original = tape.place.get(graph.position.get(node.copy_of, -1))
            if original is not None and original < index:
                yield original, index
