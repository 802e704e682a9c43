"""The order of nodes in which the fewest bytes are live at one time, without recomputation.

Any order that data and effects allow gives the same bits: sums keep their operands, and random ops
draw by stream and element. What differs is how long values live: a weight gradient before or after
the input gradient, a parameter's update early, one branch before another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphc.ir.device import CPU, Device
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.plan import ALIGNMENT
from graphc.passes.allocate import measure
from graphc.passes.recompute.tape import GraphTape
from graphc.planning.order import Arc, Precedence, least_order


def reordered(graph: Graph, alignment: int = ALIGNMENT, device: Device = CPU) -> Graph:
    """The graph in an order with a smaller packed arena, or the graph itself where none is found.

    Live bytes are counted as `graphc.passes.allocate` counts them: with overwriting, views and the
    workspaces of `device`, sizes rounded up to `alignment`. Neither they nor the arena grow.
    """
    found = with_least_peak(graph, alignment, device)
    if found is graph:
        return graph
    before, after = (measure(g, "packed", alignment, device).arena_bytes for g in (graph, found))
    return found if after < before else graph


def with_least_peak(graph: Graph, alignment: int = ALIGNMENT, device: Device = CPU) -> Graph:
    """The graph in an order with fewer live bytes, or the graph itself where none is found."""
    tape = GraphTape(graph, lambda node: 0.0, device, alignment, feature_maps_only=False)
    problem = Precedence(tape.tape, tuple(_arcs(tape)), tape.tape.fixed_bytes)
    order = least_order(problem)
    if order == list(range(len(order))):
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
        for state in _replaced(node):
            for reader in readers[tape.numbers[state]]:
                if reader != index:
                    yield reader, index
        if node.copy_of is not None:
            original = tape.place.get(graph.position.get(node.copy_of, -1))
            if original is not None and original < index:
                yield original, index


def _replaced(node: Node) -> Iterator[Value]:
    """The states that a node updates."""
    inputs = node.named_inputs() if node.op.has_effect else {}
    for name in node.op.must_overwrite.values():
        state = inputs[name]
        assert isinstance(state, Value), "a state input is one value"
        yield state
