"""Checks, by vector clocks, that every order that a stream schedule allows gives the same results.

This module belongs to the checker of plans and shares no code with the planners.

Problem: a plan with streams fixes a partial order, by the order of each stream and by waits. It can
allow more orders than any check could replay. Consider all pairs of nodes that touch a cell, at
least one of which writes it. If the partial order keeps each pair in the plan's own order, each
read finds the same content in every allowed order. `check_plan` replays the plan's own order.

The partial order is represented by vector clocks with one entry per stream (Mattern, 1989). The
clock of a node stores the last node of every stream that is certain to have run when it starts.
Node a of stream s precedes node b if and only if entry s of b's clock is at or after a. The nodes
are visited in the plan's order. For each cell, the last writer is known, and the last reader since
then on every stream. This suffices: a node after a stream's last reader is after all its readers.

O(E C) for E operands and outputs that cover at most C cells, times the number of streams.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Node
from graphc.plans.check.check_places import PlacedValues, numbers
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.streams import MOST_STREAMS, Streams

NOBODY = -1
"""The entry of a cell that no node has read or written."""


def check_streams(plan: MemoryPlan, places: PlacedValues) -> None:
    """Raise `PlanError`, naming both nodes, if nodes that access the same bytes are not ordered.

    Also raises if the slots are not a valid schedule of the plan's nodes.
    """
    if plan.streams is not None:
        _Clocks(plan, plan.streams, places).run()


class _Clocks:
    """A walk through the nodes in the plan's order, with their vector clocks."""

    def __init__(self, plan: MemoryPlan, streams: Streams, places: PlacedValues) -> None:
        self.plan, self.streams, self.places = plan, streams, places
        self.nodes = plan.graph.nodes
        count = self.check_count()
        self.ahead = np.full((count, count), NOBODY)
        """Stream → the clock of its next node: for every stream, the last node certain to precede
        it."""
        self.behind: dict[int, Any] = {}
        """Node → the clock of nodes that wait for it: the node's own clock, with the node itself
        added."""
        self.writer = np.full(places.count, NOBODY)
        self.readers = np.full((places.count, count), NOBODY)
        self.stream_of = np.zeros(len(self.nodes), np.int64)

    def check_count(self) -> int:
        """Return the number of streams; raises `PlanError` if programs do not support that many."""
        if not 1 <= self.streams.count <= MOST_STREAMS:
            raise PlanError(
                f"a plan must have 1 to {MOST_STREAMS} streams, got {self.streams.count}", []
            )
        return self.streams.count

    def run(self) -> None:
        """Check the slots of all nodes, and that each node waits for all nodes it depends on."""
        for number, node in enumerate(self.nodes):
            slot = self.streams.slots.get(node)
            if self.places.viewed(node) is not None:
                if slot is not None:
                    self.fail(node, "is a view, which executes nothing, but has a stream")
                continue
            if slot is None:
                self.fail(node, "has no stream")
            if not 0 <= slot.stream < self.streams.count:
                self.fail(node, f"is on stream {slot.stream} of {self.streams.count}")
            clock = self.ahead[slot.stream]
            for other in slot.waits:
                if other not in self.behind:
                    self.fail(node, f"waits for node {other}, which is not an earlier node")
                if self.stream_of[other] == slot.stream:
                    self.fail(node, f"waits for node {other}, which is on its own stream")
                clock = np.maximum(clock, self.behind[other])
            self.stream_of[number] = slot.stream
            self.touch(number, node, clock)
            after = clock.copy()
            after[slot.stream] = number
            self.ahead[slot.stream] = self.behind[number] = after

    def touch(self, number: int, node: Node, clock: Any) -> None:
        """Check that a node follows all nodes it depends on, and record its reads and writes."""
        read = [self.places.cells_of(value) for value in node.inputs]
        written = self.written(node)
        for cells in (*read, *written):
            self.expect(node, self.writer[cells], clock, "writes")
        for cells in written:
            for stream in range(self.streams.count):
                self.expect(node, self.readers[cells, stream], clock, "reads")
        for cells in read:
            self.readers[cells, self.stream_of[number]] = number
        for cells in written:
            self.writer[cells], self.readers[cells] = number, NOBODY

    def written(self, node: Node) -> list[Any]:
        """Return the cells that a node writes.

        These are the cells of its outputs and its workspace, except those of operands that are
        computed in place inside an output.
        """
        found = [self.places.cells_of(value) for value in node.outputs]
        if node.op.gathers is not None:
            inside = [numbers(self.places.cells_of(v)) for v in self.places.inside(node)]
            taken = np.concatenate([np.zeros(0, np.int64), *inside])
            found = [np.setdiff1d(numbers(cells), taken) for cells in found]
        scratch = self.plan.workspaces.get(node)
        if scratch is not None:
            found.append(self.places.cell_range(scratch.offset, scratch.offset + scratch.bytes))
        return found

    def expect(self, node: Node, others: Any, clock: Any, verb: str) -> None:
        """Raise `PlanError` unless the clock of `node` proves that all nodes in `others` have run.

        `verb` says what the other nodes do with the bytes.
        """
        others = others[others != NOBODY]
        late = others[others > clock[self.stream_of[others]]]
        if late.size:
            other = self.nodes[int(late[0])]
            self.fail(
                node,
                f"accesses bytes that node {late[0]} ({other.label}) {verb}, but does not wait "
                "for it",
            )

    def fail(self, node: Node, what: str) -> NoReturn:
        where = f"node {self.plan.graph.position[node]} ({node.label})"
        raise PlanError(f"{where} {what}", [node.label])
