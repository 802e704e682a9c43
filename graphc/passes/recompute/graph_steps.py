"""A training graph as planners see it, and a planner's sequence as one of graph steps.

Views are not steps of a tape: what they show stands for them, and they are put back in front of
their readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Input, Node, State, Value
from graphc.ir.types import align
from graphc.passes.recompute.cuts import forward_runs
from graphc.planning.steps import Run, Tape


class GraphTape:
    """The tape of a graph without copies, and the way back.

    `cost` gives the cost of a node. With `feature_maps_only`, what the paper's measure leaves out
    has no bytes: inputs, outputs, workspaces and what updates read.
    """

    def __init__(
        self,
        allocation: Allocation,
        cost: Callable[[Node], float],
        feature_maps_only: bool,
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
                is_state = self.storages.placements[root].how == "state"
                is_free = is_state or root in uncounted
                sizes.append(0 if is_free else align(root.type.bytes, alignment))
            self.numbers[value] = self.numbers[root]
        self.steps = [step for step, node in enumerate(graph.nodes) if not self._is_view(node)]
        self.place = {step: index for index, step in enumerate(self.steps)}
        nodes = [graph.nodes[step] for step in self.steps]

        def workspace_bytes(node: Node) -> int:
            return 0 if feature_maps_only else allocation.workspace_bytes(node, self.storages)

        self.tape = Tape(
            cost=tuple(map(cost, nodes)),
            workspace=tuple(map(workspace_bytes, nodes)),
            inputs=tuple(self._distinct(node.inputs) for node in nodes),
            outputs=tuple(self._made(node) for node in nodes),
            overwrites=tuple(map(self._overwrites, nodes)),
            bytes=tuple(sizes),
            once=frozenset(i for i, node in enumerate(nodes) if self._runs_once(node)),
            held=frozenset(self._distinct([*graph.outputs.values()])),
            runs=self._runs(),
            fixed_bytes=0
            if feature_maps_only
            else sum(align(state.type.bytes, alignment) for state in graph.states),
        )

    def bounding_tape(self) -> Tape:
        """The tape for lower bounds: concatenations have no more bytes than their parts.

        Parts may lie inside a concatenation, so who reads it reads its parts, and its own bytes are
        what they leave of it. That holds for copies too: one that is live holds what it is made of.
        """
        sizes = list(self.tape.bytes)
        parts: dict[int, tuple[int, ...]] = {}
        for node in self.graph.nodes:
            if node.op.gathers is not None:
                whole = self.numbers[node.output]
                inside = [value for value in node.inputs if self._may_lie_inside(value)]
                parts[whole] = self._distinct(inside)
                sizes[whole] = max(0, sizes[whole] - self.tape.total(parts[whole]))
        if not parts:
            return self.tape

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
            self.tape,
            bytes=tuple(sizes),
            inputs=tuple(map(opened, self.tape.inputs)),
            held=frozenset(opened(self.tape.held)),
            cost=tuple(
                0.0 if self.graph.nodes[step].op.gathers is not None else cost
                for step, cost in zip(self.steps, self.tape.cost, strict=True)
            ),
        )

    def _may_lie_inside(self, value: Value) -> bool:
        root = self.root(value)
        return not isinstance(root, State | Input) and root.type.bytes == value.type.bytes

    def root(self, value: Value) -> Value:
        """The value whose bytes a view shows, where the view takes none of its own."""
        placement = self.storages.placements[value]
        while placement.how == "view":
            assert placement.over is not None, "a view shows something"
            value = placement.over
            placement = self.storages.placements[value]
        return value

    def _is_view(self, node: Node) -> bool:
        return all(self.storages.placements[v].how == "view" for v in node.outputs)

    def _runs_once(self, node: Node) -> bool:
        """Whether the node replaces a state, or the user wants to keep what it makes."""
        return node.op.has_effect or not self._kept.isdisjoint(node.outputs)

    def _uncounted(self) -> set[Value]:
        """Values in storages of inputs, of outputs and of what updates read."""
        merged = self.allocation.merged.placements
        handed = (value for node in self.graph.effects for value in node.inputs)
        inputs = (value for value in self.graph.sources if isinstance(value, Input))
        left_out = {merged[v].buffer for v in (*handed, *inputs, *self.graph.outputs.values())}
        return {value for value, place in merged.items() if place.buffer in left_out}

    def _distinct(self, values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.numbers[value] for value in values))

    def _made(self, node: Node) -> tuple[int, ...]:
        placements = self.storages.placements
        own = [value for value in node.outputs if placements[value].how == "new"]
        return tuple(self.numbers[value] for value in own)

    def _overwrites(self, node: Node) -> tuple[tuple[int, int], ...]:
        """The pairs that passes/inplace.py may merge, as far as a node alone can tell."""
        pairs = []
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
        return tuple(pairs)

    def _may_share(self, node: Node, value: Value, operand: Value) -> bool:
        placement = self.storages.placements[operand]
        return (
            operand.shape == value.shape
            and operand.type.bytes == value.type.bytes == self.root(operand).type.bytes
            and placement.layout == self.storages.placements[value].layout
            and not isinstance(self.root(operand), State | Input)
            and all(v is operand or self.root(v) is not self.root(operand) for v in node.inputs)
        )

    def _runs(self) -> tuple[Run, ...]:
        """Forward passes and what follows each, in steps of the tape."""
        edges: list[tuple[int, int]] = []
        for run in forward_runs(self.graph):
            inside = self.tape_steps(run.steps)
            if inside:
                edges.append((inside[0], inside[-1] + 1))
        starts = [0, *(start for start, _ in edges[1:]), len(self.steps)]
        return tuple(
            Run(starts[index], turn, starts[index + 1]) for index, (_, turn) in enumerate(edges)
        )

    def tape_steps(self, sequence: Sequence[int]) -> list[int]:
        """Steps of the graph as steps of the tape, without those that are views."""
        return [self.place[step] for step in sequence if step in self.place]

    def sequence(self, steps: Sequence[int]) -> list[int]:
        """Steps of the tape as steps of the graph, each after the views that it reads."""
        graph = self.graph
        latest: dict[Value, int] = {}
        result: list[int] = []

        def show(value: Value) -> None:
            """Make the views anew that show an older appearance."""
            chain = []
            node = value.node
            while node is not None and self._is_view(node):
                chain.append(node)
                node = None if node.viewed is None else node.viewed.node
            made = -1 if node is None else latest.get(node.outputs[0], -1)
            for view in reversed(chain):
                if latest.get(view.outputs[0], -2) < made:
                    latest.update(dict.fromkeys(view.outputs, len(result)))
                    result.append(graph.position[view])
                made = latest[view.outputs[0]]

        for step in steps:
            node = graph.nodes[self.steps[step]]
            for value in node.inputs:
                show(value)
            latest.update(dict.fromkeys(node.outputs, len(result)))
            result.append(self.steps[step])
        for node in graph.nodes:
            if self._is_view(node) and node.outputs[0] not in latest:
                show(node.outputs[0])
        for value in graph.outputs.values():
            show(value)
        return result


def _each(found: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return found if isinstance(found, tuple) else (found,)
