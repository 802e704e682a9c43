"""Emission of a sequence of steps as the forward and backward graph that AOTAutograd runs.

Steps up to the forward/backward boundary become the forward graph, the others the backward graph.
Each occurrence of a step becomes one node. A view is emitted before its use, from the latest
occurrence of its base. Values live across the boundary are saved for backward as one tensor per
storage, so the saved bytes equal the planned bytes.

A schedule may also copy values to host memory. A copy begins after the producer, and the tensor is
freed where its copy is awaited. A copy back is awaited before its first use. Views of the value are
then emitted anew.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from graphc.errors import TorchError
from graphc.planner.copies.events import Event, events_of
from graphc.torch.budget.check.returned import is_tangent
from graphc.torch.budget.plan.copies import Copies, CopyNodes
from graphc.torch.budget.plan.in_place import overwriting
from graphc.torch.budget.plan.steps import NEW_STATISTICS, STATEFUL_NORMS, TorchSteps
from graphc.torch.private import (
    SavedForBackwardsAOTOutput,
    SavedForBackwardsNoVcCheckAOTOutput,
    run_and_save_rng_state,
    run_with_rng_state,
)


def emit(
    torch_steps: TorchSteps, sequence: Sequence[int], copies: Copies | None = None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a sequence, with its copies."""
    return _Emission(torch_steps, sequence, copies).graphs()


class _Emission:
    """Emission of one sequence; `env` maps nodes of the joint graph to emitted nodes."""

    def __init__(
        self, torch_steps: TorchSteps, sequence: Sequence[int], copies: Copies | None
    ) -> None:
        self.torch_steps, self.joint = torch_steps, torch_steps.joint
        self.steps, self.sequence = torch_steps.steps, sequence
        self.boundary = sequence.index(torch_steps.boundary)
        events = list(events_of(sequence) if copies is None else copies.events)
        begin = events.index(Event("run", torch_steps.boundary))
        self.events = events[:begin], events[begin + 1 :]
        """The events of the forward and of the backward pass."""
        self.copies = CopyNodes(self.joint, copies)
        counts = Counter(sequence)
        self.repeated = {step for step, count in counts.items() if count > 1}
        firsts = {step: p for p, step in reversed(list(enumerate(sequence)))}
        self.is_first = [firsts[step] == position for position, step in enumerate(sequence)]
        self.dying, self.live_outputs = self._liveness()
        self.saved_values = self._crossing()
        self.views = self._views()
        self.first_only = self.steps.live_out | self._statistics()
        """Values that only the first occurrence of a step produces."""
        self.env: dict[fx.Node, fx.Node] = {}
        self.states: dict[int, fx.Node] = {}

    def graphs(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, saved = self._forward()
        return self._module(forward), self._module(self._backward(saved))

    def _liveness(self) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
        """Return, by position, the operands that have no later use and the outputs that do."""
        live = set(self.steps.live_out)
        dying: list[frozenset[int]] = []
        outputs: list[frozenset[int]] = []
        for step in reversed(self.sequence):
            outputs.append(frozenset(live.intersection(self.steps.outputs[step])))
            live.difference_update(self.steps.outputs[step])
            dying.append(frozenset(v for v in self.steps.inputs[step] if v not in live))
            live.update(self.steps.inputs[step])
        return dying[::-1], outputs[::-1]

    def _crossing(self) -> list[int]:
        """Return the values produced before the boundary and used after it, in ascending order."""
        wanted = set(self._read(self.joint.outputs[self.joint.forward_outputs :]))
        for kind, number in reversed(self.events[1]):
            if kind == "run":
                wanted.difference_update(self.steps.outputs[number])
                wanted.update(self.steps.inputs[number])
            elif kind == "in":
                wanted.discard(number)
            elif kind == "drop":
                wanted.add(number)
        return sorted(wanted - set(self.steps.outputs[self.torch_steps.boundary]))

    def _statistics(self) -> frozenset[int]:
        norms = (node for node in self.joint.step_of if node.target in STATEFUL_NORMS)
        values = (self.joint.values[node][NEW_STATISTICS:] for node in norms)
        return frozenset(itertools.chain.from_iterable(values))

    def _read(self, nodes: Iterable[fx.Node | None]) -> list[int]:
        there = self.joint.source_values
        values = (v for node in nodes if node is not None for v in self.joint.values[node])
        return [value for value in values if value not in there]

    def _views(self) -> dict[fx.Node, list[fx.Node]]:
        """Return, by step, its views and their views, which are emitted anew with the step."""
        found: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        above: dict[fx.Node, list[fx.Node]] = {}
        for node in self.joint.values:
            if node in self.joint.step_of or node.op != "call_function":
                continue
            above[node] = [
                root
                for each in node.all_input_nodes
                for root in above.get(each, [each] if each in self.joint.step_of else [])
            ]
            for root in above[node]:
                found[root].append(node)
        return found

    def _forward(self) -> tuple[fx.Graph, list[fx.Node]]:
        graph = fx.Graph()
        for source in self.joint.sources:
            if not is_tangent(source):
                self.env[source] = _copied(graph, source, {})
        self.copies.open(graph)
        self._carry_out(graph, 0)
        leaving = self.joint.outputs[: self.joint.forward_outputs]
        outputs = [None if node is None else self._tensor(graph, node) for node in leaving]
        saved = self._saved(graph)
        described = list(self.joint.output_descriptions[: self.joint.forward_outputs])
        for index, node in enumerate(saved):
            unchecked = node.meta.get("saved_tensor_with_no_vc_check", False)
            kind = SavedForBackwardsNoVcCheckAOTOutput if unchecked else SavedForBackwardsAOTOutput
            described.append(kind(index))
        graph.output((*outputs, *saved)).meta["desc"] = described
        return graph, saved

    def _saved(self, graph: fx.Graph) -> list[fx.Node]:
        """Return the nodes saved for backward, those with version checks first."""
        values = [
            self.states[v] if v in self.states else self._tensor(graph, self.joint.base[v])
            for v in self.saved_values
        ]
        self.read_sources = self._sources_backward_nodes()
        nodes = [*values, *(self.env[source] for source in self.read_sources)]
        if any(event.kind != "run" for event in self.events[1]):
            nodes.append(self.copies.host)
        return sorted(nodes, key=lambda n: bool(n.meta.get("saved_tensor_with_no_vc_check", False)))

    def _sources_backward_nodes(self) -> list[fx.Node]:
        """Return the parameters and inputs that the backward graph reads, without constants."""
        wanted: dict[fx.Node, None] = {}
        pending: list[fx.Node] = []
        for step in self.sequence[self.boundary + 1 :]:
            node = self.torch_steps.nodes[step]
            if node is not None:
                pending += self._operands(step, node)
        pending += [n for n in self.joint.outputs[self.joint.forward_outputs :] if n is not None]
        seen: set[fx.Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or node in self.joint.step_of:
                continue
            seen.add(node)
            if node.op in ("placeholder", "get_attr"):
                wanted[node] = None
            pending += node.all_input_nodes
        return [
            source
            for source in self.joint.sources
            if source in wanted and source.op == "placeholder" and not is_tangent(source)
        ]

    def _operands(self, step: int, node: fx.Node) -> list[fx.Node]:
        """Return the operands of an occurrence after the boundary."""
        if step < self.torch_steps.boundary and node.target in STATEFUL_NORMS:
            return [each for each in node.args[:3] if isinstance(each, fx.Node)]
        return list(node.all_input_nodes)

    def _backward(self, saved: Sequence[fx.Node]) -> fx.Graph:
        graph = fx.Graph()
        by_node = {node: _copied(graph, node, {}, "placeholder") for node in saved}
        forward_env, forward_states = self.env, self.states
        self.env, self.states = {}, {}
        for value in self.saved_values:
            if value in forward_states:
                self.states[value] = by_node[forward_states[value]]
            else:
                base = self.joint.base[value]
                self.env[base] = by_node[forward_env[base]]
        for source in self.read_sources:
            self.env[source] = by_node[forward_env[source]]
        self.copies.host = by_node.get(self.copies.host)
        constants = [source for source in self.joint.sources if source.op == "get_attr"]
        for source in (*self.joint.tangents, *constants):
            self.env[source] = _copied(graph, source, {})
        self._carry_out(graph, 1)
        leaving = self.joint.outputs[self.joint.forward_outputs :]
        outputs = [None if node is None else self._tensor(graph, node) for node in leaving]
        graph.output(tuple(outputs)).meta["desc"] = list(
            self.joint.output_descriptions[self.joint.forward_outputs :]
        )
        for node in graph.nodes:
            if node.op in ("call_function", "get_attr"):
                node.meta["autograd_backward"] = True
        return graph

    def _carry_out(self, graph: fx.Graph, part: int) -> None:
        """Emit the events of the forward pass (part 0) or of the backward pass (part 1)."""
        position = part * (self.boundary + 1)
        for kind, number in self.events[part]:
            if kind != "run":
                self._copy(graph, kind, number)
                continue
            for value in self.steps.inputs[number]:
                if self.copies.is_coming(value):
                    base = self.joint.base[value]
                    self.env[base] = self.copies.end_in(graph, value, self.env[base])
            node = self.torch_steps.nodes[number]
            if node is not None:
                self._appear(graph, position, number, node)
            position += 1

    def _copy(self, graph: fx.Graph, kind: str, value: int) -> None:
        """Emit a copy to the host, its end, or the begin of a copy back."""
        base = self.joint.base[value]
        if kind == "out":
            self.copies.begin_out(graph, value, self.env[base])
            return
        if kind == "drop":
            self.copies.end_out(graph, value, self.env[base])
        for node in (base, *self.copies.views[value]):
            self.env.pop(node, None)
        if kind == "in":
            self.env[base] = self.copies.begin_in(graph, value)

    def _appear(self, graph: fx.Graph, position: int, step: int, node: fx.Node) -> None:
        """Emit one occurrence of a step."""
        arguments = (self._arguments(position, node), dict(node.kwargs))
        args, kwargs = fx.map_arg(arguments, lambda each: self._tensor(graph, each))
        for each in self.views[node]:
            if self.first_only.isdisjoint(self.joint.values[each]):
                self.env.pop(each, None)
        if step in self.torch_steps.state_of and step in self.repeated:
            made = self._with_random_state(graph, position, node, args, kwargs)
        else:
            made = graph.call_function(*self._call(position, node, args, kwargs))
        made.meta = dict(node.meta)
        self.env[node] = made
        if not isinstance(node.meta.get("val"), torch.Tensor):
            first = self.first_only if self.is_first[position] else frozenset()
            self._take_apart(graph, node, made, self.live_outputs[position] | first)

    def _arguments(self, position: int, node: fx.Node) -> tuple[Any, ...]:
        if node.target in STATEFUL_NORMS and not self.is_first[position]:
            x, weight, bias, _, _, training, momentum, epsilon = node.args
            return (x, weight, bias, training, momentum, epsilon)
        return tuple(node.args)

    def _call(
        self, position: int, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the call of a node, which overwrites the first dying operand if allowed."""
        if node.target in STATEFUL_NORMS and not self.is_first[position]:
            return STATEFUL_NORMS[node.target], args, kwargs
        for _, operand in self.steps.overwrites[self.sequence[position]]:
            if operand in self.dying[position]:
                indices = [
                    index
                    for index, each in enumerate(node.args)
                    if isinstance(each, fx.Node) and operand in self.joint.values[each]
                ]
                return overwriting(node, indices[0], args, kwargs)
        return node.target, args, kwargs

    def _with_random_state(
        self, graph: fx.Graph, position: int, node: fx.Node, args: Any, kwargs: Any
    ) -> fx.Node:
        """Emit a random op; the first occurrence saves the state, later ones restore it."""
        value = self.torch_steps.state_of[self.sequence[position]]
        if not self.is_first[position]:
            given = (self.states[value], node.target, *args)
            return graph.call_function(run_with_rng_state, given, kwargs)
        both = graph.call_function(run_and_save_rng_state, (node.target, *args), kwargs)
        with self.joint.fake_mode:
            state = torch.empty(self.steps.bytes[value], dtype=torch.uint8)
        both.meta["val"] = (state, node.meta["val"])
        self.states[value] = graph.call_function(operator.getitem, (both, 0))
        self.states[value].meta["val"] = state
        return graph.call_function(operator.getitem, (both, 1))

    def _take_apart(
        self, graph: fx.Graph, node: fx.Node, made: fx.Node, wanted: frozenset[int]
    ) -> None:
        """Emit a getitem for each used output directly after the tuple; the rest is freed."""
        for user in node.users:
            if user.target is operator.getitem and not wanted.isdisjoint(self.joint.values[user]):
                self.env[user] = _copied(graph, user, {node: made})

    def _tensor(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """Return the emitted node for a node of the joint graph; emits views if needed."""
        found = self.env.get(node)
        if found is None:
            if node in self.joint.step_of or node.op != "call_function":
                raise TorchError(f"the plan reads {node.name} at a step where it is not available")
            operands = {each: self._tensor(graph, each) for each in node.all_input_nodes}
            found = self.env[node] = _copied(graph, node, operands)
        return found

    def _module(self, graph: fx.Graph) -> fx.GraphModule:
        graph.lint()
        return fx.GraphModule(self.joint.module, graph)


def _copied(
    graph: fx.Graph, node: fx.Node, operands: dict[fx.Node, fx.Node], op: str | None = None
) -> fx.Node:
    if op == "placeholder":
        made = graph.placeholder(node.name)
    elif node.op == "placeholder":
        made = graph.placeholder(str(node.target))
    else:
        made = graph.node_copy(node, operands.__getitem__)
    made.meta = dict(node.meta)
    return made
