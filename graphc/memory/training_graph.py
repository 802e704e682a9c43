"""Conversion of a training graph to a planner's problem, and of its sequences back to graph nodes.
Views are not steps of a planner: the value that a view shows represents the view, and `with_views`
inserts views again before their consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from graphc.ir.graph import Input, Node, State, Value
from graphc.ir.host_copies import fetched_state
from graphc.ir.types import align
from graphc.memory.allocate import Allocation
from graphc.memory.order.forward_passes import forward_passes
from graphc.planner.copies.events import Event, events_of
from graphc.planner.problem import Problem, Run


class TrainingGraph:
    """The steps of a graph without copies, with the mapping between steps and nodes.

    Step i is the node at `positions[i]`, and `place` is the inverse. `numbers` numbers the values;
    a view has the number of the value that it views.

    `cost` gives the cost of a node. With `feature_maps_only`, values that the measure of Chen et
    al. leaves out have no bytes: inputs, outputs, workspaces and operands of updates. With
    `is_one_pass` there is a single forward pass, which ends where the gradient begins. Forward
    nodes after that execute once.
    """

    def __init__(
        self,
        allocation: Allocation,
        cost: Callable[[Node], float],
        feature_maps_only: bool,
        is_one_pass: bool = False,
    ) -> None:
        self.allocation = allocation
        self.storages = allocation.separate
        self.graph = graph = allocation.graph
        alignment = allocation.alignment
        self._kept = {self.root(value) for value in graph.kept}
        self.numbers: dict[Value, int] = {}
        sizes: list[int] = []
        uncounted = self._uncounted() if feature_maps_only else set()
        for value in graph.values:
            root = self.root(value)
            if root not in self.numbers:
                self.numbers[root] = len(sizes)
                # States have a region of their own, which `fixed_bytes` counts.
                is_state = self.storages.placements[root].how == "state"
                is_free = is_state or root in uncounted
                sizes.append(0 if is_free else align(root.type.bytes, alignment))
            self.numbers[value] = self.numbers[root]
        self.positions = [
            position for position, node in enumerate(graph.nodes) if not self._is_view(node)
        ]
        self.place = {position: step for step, position in enumerate(self.positions)}
        nodes = [graph.nodes[position] for position in self.positions]

        def workspace_bytes(node: Node) -> int:
            return 0 if feature_maps_only else allocation.workspace_bytes(node, self.storages)

        self.steps = Problem(
            cost=tuple(map(cost, nodes)),
            workspace=tuple(map(workspace_bytes, nodes)),
            inputs=tuple(self._distinct(node.inputs) for node in nodes),
            outputs=tuple(self._made(node) for node in nodes),
            overwrites=tuple(map(self._overwrites, nodes)),
            bytes=tuple(sizes),
            once=frozenset(i for i, node in enumerate(nodes) if self._runs_once(node)),
            live_out=frozenset(self._distinct([*graph.outputs.values()])),
            runs=self._one_run() if is_one_pass else self._runs(),
            fixed_bytes=0 if feature_maps_only else allocation.fixed_bytes(self.storages),
        )

    @cached_property
    def bounding_steps(self) -> Problem:
        """The steps for lower bounds, in which concatenations take only the bytes of their parts.

        Parts may be placed inside a concatenation. So a consumer of the whole reads its parts, and
        the whole has only the bytes that its parts leave. This holds for recomputed concatenations
        too: while one is live, so are its parts.
        """
        sizes = list(self.steps.bytes)
        parts: dict[int, tuple[int, ...]] = {}
        for node in self.graph.nodes:
            if node.op.gathers is not None:
                whole = self.numbers[node.output]
                # States and inputs have other storage, and a view of part of a value cannot
                # represent all of it.
                inside = {self.numbers[v]: v for v in node.inputs if self._may_be_inside(v)}
                parts[whole] = tuple(inside)
                # Inside, parts are adjacent: only the whole is aligned.
                for part, value in inside.items():
                    sizes[part] = min(sizes[part], value.type.bytes)
                own = min(sizes[whole], node.output.type.bytes)
                own -= sum(min(self.steps.bytes[n], v.type.bytes) for n, v in inside.items())
                sizes[whole] = max(0, own)
        if not parts:
            return self.steps

        def opened(values: Iterable[int]) -> tuple[int, ...]:
            found: dict[int, None] = {}
            pending = list(values)[::-1]
            while pending:
                value = pending.pop()
                if value not in found:
                    found[value] = None
                    pending += reversed(parts.get(value, ()))
            return tuple(found)

        return replace(
            self.steps,
            bytes=tuple(sizes),
            inputs=tuple(map(opened, self.steps.inputs)),
            live_out=frozenset(opened(self.steps.live_out)),
            cost=tuple(
                # If its parts are already inside, nothing is copied, so a bound counts no cost.
                0.0 if self.graph.nodes[position].op.gathers is not None else cost
                for position, cost in zip(self.positions, self.steps.cost, strict=True)
            ),
        )

    def _may_be_inside(self, value: Value) -> bool:
        root = self.root(value)
        return not isinstance(root, State | Input) and root.type.bytes == value.type.bytes

    def root(self, value: Value) -> Value:
        """Return the value whose bytes a view shares, or the value itself if it is not a view."""
        placement = self.storages.placements[value]
        while placement.how == "view":
            assert placement.over is not None, "something is viewed"
            value = placement.over
            placement = self.storages.placements[value]
        return value

    def _is_view(self, node: Node) -> bool:
        return all(self.storages.placements[v].how == "view" for v in node.outputs)

    def _runs_once(self, node: Node) -> bool:
        """Return whether the node may run only once: it replaces a state, or the user keeps an
        output."""
        return node.op.has_effect or not self._kept.isdisjoint(node.outputs)

    def _uncounted(self) -> set[Value]:
        """Return the values stored in buffers of graph inputs, graph outputs or operands of
        updates."""
        merged = self.allocation.merged.placements
        handed = (value for node in self.graph.effects for value in node.inputs)
        inputs = (value for value in self.graph.sources if isinstance(value, Input))
        left_out = {merged[v].buffer for v in (*handed, *inputs, *self.graph.outputs.values())}
        return {value for value, place in merged.items() if place.buffer in left_out}

    def _distinct(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.numbers[value] for value in values))

    def _made(self, node: Node) -> tuple[int, ...]:
        placements = self.storages.placements
        # Only a write-back reads the new content of a state.
        own = [v for v in node.outputs if placements[v].how != "state" or self.graph.uses[v]]
        return tuple(self.numbers[value] for value in own)

    def _overwrites(self, node: Node) -> tuple[tuple[int, int], ...]:
        """Return the pairs (output, operand) of a node whose output may overwrite the operand. Live
        ranges, which graphc.memory.inplace also checks, are ignored."""
        pairs: list[tuple[int, int]] = []
        outputs, inputs = node.named_outputs(), node.named_inputs()
        for name, candidates in node.op.may_overwrite.items():
            values = _each(outputs[name])
            operands = [operand for candidate in candidates for operand in _each(inputs[candidate])]
            pairs += [
                (self.numbers[value], self.numbers[operand])
                for value in values
                for operand in operands
                if self._may_share(node, value, operand)
            ]
        # Updates of states on the host replace copies.
        copies = ((y, x) for y, x in node.replaced.items() if fetched_state(x) is not None)
        return (*pairs, *((self.numbers[y], self.numbers[x]) for y, x in copies))

    def _may_share(self, node: Node, value: Value, operand: Value) -> bool:
        placement = self.storages.placements[operand]
        return (
            operand.shape == value.shape
            and operand.type.bytes == value.type.bytes == self.root(operand).type.bytes
            and placement.layout == self.storages.placements[value].layout
            and not isinstance(self.root(operand), State | Input)
            # Another operand in the same bytes would be overwritten while it is read.
            and all(v is operand or self.root(v) is not self.root(operand) for v in node.inputs)
        )

    def _runs(self) -> tuple[Run, ...]:
        """Return the runs: each forward pass with the steps up to the next forward pass."""
        edges: list[tuple[int, int]] = []
        for forward_pass in forward_passes(self.graph):
            inside = self.without_views(forward_pass.steps)
            if inside:
                edges.append((inside[0], inside[-1] + 1))
        # A run ends where the next forward pass begins; the first also takes the steps before it.
        starts = [0, *(start for start, _ in edges[1:]), len(self.positions)]
        return tuple(
            Run(starts[index], boundary, starts[index + 1])
            for index, (_, boundary) in enumerate(edges)
        )

    def _one_run(self) -> tuple[Run, ...]:
        """Return a single run of all steps, whose boundary is the first gradient step."""
        count = len(self.positions)
        phases = (self.graph.nodes[position].phase for position in self.positions)
        boundary = next((step for step, phase in enumerate(phases) if phase == "gradient"), count)
        return (Run(0, boundary, count),)

    def without_views(self, positions: Iterable[int]) -> list[int]:
        """Return the steps of the nodes at these positions, leaving out views."""
        return [self.place[position] for position in positions if position in self.place]

    def with_views(self, sequence: Iterable[int]) -> list[int]:
        """Return the node positions of a sequence of steps, each node after the views that it
        reads."""
        return [event.number for event in self.events_with_views(events_of(sequence))]

    def events_with_views(self, events: Iterable[Event]) -> list[Event]:
        """Return events in which runs name node positions, each node after the views that it reads.

        Copies name values by number, as before. Views of a value are repeated if it was recomputed
        or fetched after them.
        """
        graph = self.graph
        latest: dict[Value, int] = {}
        result: list[Event] = []

        def run(node: Node) -> None:
            latest.update(dict.fromkeys(node.outputs, len(result)))
            result.append(Event("run", graph.position[node]))

        def renew(value: Value) -> None:
            """Repeat the views that lead to a value if the viewed value was made after them."""
            views = []
            while value.node is not None and self._is_view(value.node):
                views.append(value.node)
                assert value.node.viewed is not None, "a view has an operand"
                value = value.node.viewed
            # -1 for a value that always exists. A missing view counts as -2 below, so that it is
            # inserted even then.
            made = latest.get(value, -1)
            # Innermost first: a renewed view makes the views of it outdated.
            for view in reversed(views):
                if latest.get(view.outputs[0], -2) < made:
                    run(view)
                made = latest[view.outputs[0]]

        for event in events:
            if event.kind == "run":
                node = graph.nodes[self.positions[event.number]]
                for value in node.inputs:
                    renew(value)
                run(node)
            else:
                if event.kind == "in":
                    latest[self.roots[event.number]] = len(result)
                result.append(event)
        for node in graph.nodes:
            # These views have no consumer, but the sequence must contain every node.
            if self._is_view(node) and node.outputs[0] not in latest:
                renew(node.outputs[0])
        # A view among the outputs shows the latest occurrence, which is the one that stays live.
        for value in graph.outputs.values():
            renew(value)
        return result

    @cached_property
    def resident(self) -> frozenset[int]:
        """The values that a search may not copy to the host: those that are live at the end, and
        those that nodes which copy a state on the host read or compute."""
        nodes = (node for node in self.graph.nodes if node.host_copy is not None)
        copied = (v for node in nodes for v in (*node.inputs, *node.outputs))
        return self.steps.live_out.union(self.numbers[value] for value in copied)

    @cached_property
    def roots(self) -> dict[int, Value]:
        """The value of each number that is not a view."""
        return {
            number: value for value, number in self.numbers.items() if self.root(value) is value
        }


def _each(found: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return found if isinstance(found, tuple) else (found,)


def flops(node: Node) -> float:
    """Return the cost of a node in flops, for goals that limit extra work."""
    return float(node.op.cost(node).flops)
