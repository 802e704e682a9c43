"""Explanations of copies to host memory: their times, and the cost of recomputation instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from graphc.ir.graph import Node, State, Value
from graphc.ir.host_copies import is_fetched, original
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.names import born, called, count, node_at, node_of
from graphc.plans.timeline import TimedCopy, timeline
from graphc.view.aliases import BEHIND, Aliases, is_forward


class HostCopy(NamedTuple):
    """A copy between device and host, with its modeled times, and the node that waits for it."""

    timed: TimedCopy
    begin: Node
    arrival: Node


class Offloading:
    """The copies of a plan by the value that is copied to the host, by the model of its step."""

    def __init__(self, plan: MemoryPlan, aliases: Aliases, costs: CostModel) -> None:
        self._plan, self._aliases, self._costs = plan, aliases, costs

    @cached_property
    def _copies(self) -> dict[Value, list[HostCopy]]:
        graph = self._plan.graph
        arrivals = {node.awaited: node for node in graph.nodes if node.awaited is not None}
        found: dict[Value, list[HostCopy]] = {}
        for timed in timeline(self._plan, self._costs).copies if self._plan.host_bytes else ():
            begin = graph.nodes[timed.node]
            copy = HostCopy(timed, begin, arrivals[begin])
            found.setdefault(original(begin.output), []).append(copy)
        return found

    def of(self, value: Value) -> list[HostCopy]:
        """Return the copies of a value to the host and back, in order.

        They are the same for the value, for its copies on the host, and for those fetched from it.
        """
        return self._copies.get(original(value), [])

    def facts(self, value: Value) -> list[dict[str, Any]]:
        """Return the copies of a value for JSON; `last_node` waits for the end of the copy."""
        return [
            {
                "to": timed.to,
                "bytes": timed.bytes,
                "first_node": timed.node,
                "last_node": self._plan.graph.position[arrival],
                "seconds": timed.end - timed.start,
                "stall_seconds": timed.stall,
            }
            for timed, _, arrival in self.of(value)
        ]

    def explain(self, value: Value) -> Iterator[str]:
        """Yield sentences about the copies of a value, if the plan has copies.

        A value that backward nodes read may also stay in the arena.
        """
        plan, source = self._plan, original(value)
        if not plan.host_bytes or isinstance(value, State):
            return
        copies, root = self.of(value), value.root
        if not copies:
            if root is not value and self.of(root):
                yield f"Its bytes are those of {called(plan, root)}, which is copied to the host."
            elif is_forward(value) and self._is_read_backward(value):
                yield "Nothing of it is copied to the host; its bytes stay in the arena."
            return
        if source is not value:
            yield f"{self._role(value)} {called(plan, source)}."
        for copy in copies:
            yield from self._out(copy) if copy.timed.to == "host" else self._back(copy)
        yield from self._why(source, copies)

    def _is_read_backward(self, value: Value) -> bool:
        nodes = self._plan.graph.nodes
        return any(nodes[reader.step].phase in BEHIND for reader in self._aliases.readers(value))

    def _role(self, value: Value) -> str:
        node = value.producer
        if not node.op.awaits:
            return f"It is an unfinished copy to the {node.op.copies_to} of"
        return "It is fetched from the host, a copy of" if is_fetched(value) else "It is a copy of"

    def _out(self, copy: HostCopy) -> Iterator[str]:
        plan, source = self._plan, copy.begin.inputs[0]
        is_free = not isinstance(source, State) and not self._aliases.output_names(source)
        last = self._aliases.readers(source)[-1].step
        free = f"; the bytes in the arena are free after {node_at(plan, last)}" if is_free else ""
        yield (
            f"The copy to the host starts at {node_of(plan, copy.begin)} and takes "
            f"{_seconds(copy.timed)}{free}."
        )
        yield self._wait(copy)

    def _back(self, copy: HostCopy) -> Iterator[str]:
        plan, fetched = self._plan, copy.arrival.output
        uses = self._aliases.readers(fetched)
        reads = f"its first use is {node_at(plan, uses[0].step)}" if uses else "no node reads it"
        yield (
            f"The copy back starts at {node_of(plan, copy.begin)} and takes "
            f"{_seconds(copy.timed)}. It writes {plan.graph.names[fetched]}; {reads}."
        )
        yield self._wait(copy)

    def _wait(self, copy: HostCopy) -> str:
        if not copy.timed.stall:
            return "The step does not stall for it."
        name = node_of(self._plan, copy.arrival)
        return f"The step stalls {copy.timed.stall:.2g} seconds for it, at {name}."

    def _why(self, source: Value, copies: list[HostCopy]) -> Iterator[str]:
        """Compare the stalls of a value's copies with the seconds to recompute it."""
        back = [copy for copy in copies if copy.timed.to == "device"]
        if not back or source.node is None:
            return
        stall = math.fsum(copy.timed.stall for copy in copies)
        steps = [self._plan.graph.position[copy.arrival] for copy in back]
        again = [node for step in steps for node in self.nodes_again(source, step)]
        seconds = math.fsum(self._costs.seconds(node) for node in again)
        yield (
            f"Recomputing it there would take {seconds:.2g} seconds by the cost model, for "
            f"{count(len(again), 'node')} from inputs, states and values live there. Its copies "
            f"stall the step {stall:.2g} seconds{_faster(seconds, stall)}."
        )

    def nodes_again(self, value: Value, step: int) -> list[Node]:
        """Return the nodes that would compute a value again at a step, in order.

        They start from inputs, states and the values whose bytes are live at the step, which may be
        copies of those read. This is an estimate: their results need bytes, too, and states may
        have changed.
        """
        position = self._plan.graph.position
        live = self._live(step)
        found: set[Node] = set()
        waiting = [value]
        while waiting:
            node = waiting.pop().node
            if node is None or node in found:
                continue
            found.add(node)
            operands = map(_first, node.inputs)
            waiting += [each for each in operands if each not in live]
        return sorted(found, key=lambda node: position.get(node, 0))

    def _live(self, step: int) -> set[Value]:
        """Return the values on the device that are live at a step, copies by their originals."""
        plan, live = self._plan, set[Value]()
        for value in plan.graph.values:
            unfinished = value.node is not None and value.node.op.begins
            if value.on_host or unfinished or born(plan, value) >= step:
                continue
            uses = self._aliases.readers(value)
            if self._aliases.output_names(value) or (uses and uses[-1].step >= step):
                live.add(_first(value))
        return live


def _faster(recomputing: float, stall: float) -> str:
    if recomputing > stall:
        return ", so copying is faster"
    if recomputing < stall:
        return ", so recomputing would be faster, if its results fit into the arena"
    return ", so neither is faster"


def _first(value: Value) -> Value:
    """Return the value that copies to the host and recomputation copied, itself if none did."""
    found = original(value)
    while found.node is not None and found.node.copy_of is not None:
        found = original(found.node.copy_of.outputs[found.index])
    return found


def _seconds(copy: TimedCopy) -> str:
    return f"{copy.end - copy.start:.2g} seconds"
