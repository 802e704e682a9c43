"""Graphs that execute schedules with copies to host memory.

A copy is two nodes, its begin and an `Arrival`, which waits for its end. For the events of
graphc/planner/copies/events.py:

    out v     the begin of the copy to the host
    drop v    its arrival, which reads v, so v is live until the copy has ended
    in v      the begin of the copy back; its arrival precedes the next use of v and reads the value
              on the host, whose bytes are thus live until then

After a copy back, uses of v read the arrival's output. So liveness frees the bytes of v on the
device after the drop.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import Op
from graphc.memory.schedule import Execution
from graphc.memory.training_graph import TrainingGraph
from graphc.ops.collective import Arrival
from graphc.ops.host_copy import CopyToDevice, CopyToHost
from graphc.planner.copies.events import Event


def with_copies(training: TrainingGraph, events: Iterable[Event]) -> Graph:
    """Return the graph that executes events whose numbers are those of a training graph's steps and
    values."""
    execution = _WithCopies(training.graph)
    for event in training.events_with_views(events):
        match event.kind:
            case "run":
                execution.run(event.number)
            case "out":
                execution.begin_out(training.roots[event.number])
            case "drop":
                execution.end_out(training.roots[event.number])
            case "in":
                execution.begin_in(training.roots[event.number])
    return execution.result()


class _WithCopies(Execution):
    """An execution whose values may be copied to the host and back. Values are those of `graph`."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.leaving: dict[Value, Node] = {}
        """Value → the begin of its copy to the host."""
        self.on_host: dict[Value, Value] = {}
        self.arriving: dict[Value, Node] = {}
        """Value → the begin of its copy back, until its arrival."""

    def begin_out(self, value: Value) -> None:
        self.leaving[value] = self._node(CopyToHost, value, self.rewriter.value(value))

    def end_out(self, value: Value) -> None:
        begun = self.leaving[value]
        self.on_host[value] = self._node(Arrival, value, begun.output, *begun.inputs).output

    def begin_in(self, value: Value) -> None:
        self.arriving[value] = self._node(CopyToDevice, value, self.on_host[value])

    def run(self, step: int) -> None:
        for value in self.graph.nodes[step].inputs:
            begun = self.arriving.pop(value, None)
            if begun is not None:
                there = self._node(Arrival, value, begun.output, *begun.inputs).output
                self.rewriter.stand([value], [there])
        super().run(step)

    def _node(self, op: type[Op], value: Value, *inputs: Value) -> Node:
        """Append a node for a copy of `value`, in its scope and phase."""
        node = value.producer
        with builder.in_phase(node.phase, node.scope, node.segment):
            return self.rewriter.add(builder.apply(op, *inputs))
