"""States in host memory: steps fetch them for their update, and write them back.

Problem: a step reads a moment once, in the update of its parameter, but the moment has bytes on the
device in the whole step. Adam has two moments of the size of each parameter.

The pass moves states to the host. Each then has five nodes instead of one update: the begin and the
arrival of a copy to the device, the update, which overwrites this copy, and the begin and the end
of a write-back (see `graphc.ops.host_copy`). They are adjacent, so passes that follow see few bytes
on the device. After the order of nodes is final, `overlap_state_copies` moves the copies apart.

Only states that updates alone read are moved. Small states stay on the device: they save little,
and each copy has a latency. The updates read the same numbers, so no bit of a step changes. O(V).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.collective import Arrival
from graphc.ops.host_copy import CopyToDevice, WriteBack, WrittenBack

LEAST_BYTES = 2**16
"""The bytes of the smallest state that is moved. A copy has a latency of about the time in which a
link moves 128 to 512 KiB."""


def with_moments_on_host(graph: Graph, least_bytes: int = LEAST_BYTES) -> Graph:
    """Return the graph with the moments of at least `least_bytes` bytes in host memory.

    Moments that nodes of other phases read, or that no update replaces, stay on the device.
    """
    movable = _movable(graph, least_bytes)
    moved: dict[Value, State] = {state: replace(state, memory="host") for state in movable}
    return _with_copies(graph, moved) if moved else graph


def _movable(graph: Graph, least_bytes: int) -> Iterator[State]:
    """Yield the moments that only updates read, in order of first use."""
    shown = {graph.roots[value] for value in graph.visible}
    elsewhere = shown | {
        graph.roots[value]
        for node in graph.nodes
        if node.phase != "update"
        for value in node.inputs
    }
    for state in graph.states:
        is_moment = state.role == "moment" and state.type.bytes >= least_bytes
        if is_moment and state in graph.replaced and state not in elsewhere:
            yield state


def _with_copies(graph: Graph, moved: Mapping[Value, State]) -> Graph:
    """Return the graph with states in host memory, by `moved`, and with the nodes that copy them.

    A state is fetched before its first use, and written back after its update.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        with builder.in_phase(node.phase, node.scope, node.segment):
            _fetch(rewriter, [v for v in dict.fromkeys(node.inputs) if v in moved], moved)
            rewriter.put(node, rewriter.moved(node))
            states = {rewriter.value(y): moved[x] for y, x in node.replaced.items() if x in moved}
            begun = [rewriter.add(builder.apply(WriteBack, y, x)) for y, x in states.items()]
            for begin in begun:
                rewriter.add(builder.apply(WrittenBack, begin.output, begin.inputs[0]))
    return rewriter.result()


def _fetch(rewriter: Rewriter, states: list[Value], moved: Mapping[Value, State]) -> None:
    """Append copies to the device of the states that have none yet."""
    states = [state for state in states if rewriter.value(state) is state]
    begun: list[Node] = [
        rewriter.add(builder.apply(CopyToDevice, moved[state])) for state in states
    ]
    for state, begin in zip(states, begun, strict=True):
        there = rewriter.add(builder.apply(Arrival, begin.output, *begin.inputs))
        rewriter.stand([state], [there.output])
