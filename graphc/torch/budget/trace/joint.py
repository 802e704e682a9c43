"""Storages and steps of the joint forward and backward graph that AOTAutograd traces.

A value is a storage of a fake tensor. A node that only views storages is not a step; it is emitted
before its use. All other nodes are steps. Steps keep the order of the trace, except that all steps
of the backward pass follow those of the forward pass.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from graphc.torch.budget.check.returned import Incoming, Returned, incoming, is_tangent
from graphc.torch.budget.trace.eager import EAGER, EAGER_BACKWARD
from graphc.torch.budget.trace.gradients import copy_shared_gradients
from graphc.torch.budget.trace.layouts import lay_as_kernels_do
from graphc.torch.budget.trace.measure import allocated_bytes
from graphc.torch.budget.trace.refusals import called_op, refuse_node
from graphc.torch.private import InputMutationAOTOutput, effect_of

aten = torch.ops.aten

NORM_BACKWARD = {
    aten.native_batch_norm_backward.default: 7,
    aten.cudnn_batch_norm_backward.default: None,
    aten.miopen_batch_norm_backward.default: None,
}
"""Maps each op to the operand that says whether it trains; None if it always trains.

In training it does not use running statistics, its operands 3 and 4. Reading them would only
extend their live ranges past the forward pass.
"""

RNN_WORKSPACE = 3
"""Index of the output of oneDNN's recurrent layer that its backward pass reads."""


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors that a node produces, in order."""
    return [t for t in tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> int:
    """Return an identifier of a fake tensor's storage, unique while the graph exists."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True)
class JointStep:
    """A node that computes, with the values that it reads and produces (`makes`)."""

    node: fx.Node
    reads: tuple[int, ...]
    makes: tuple[int, ...]


class Joint:
    """Values and steps of a joint graph.

    The first `forward_outputs` outputs belong to the forward pass. Autograd keeps no gradients of
    `results`, which are non-leaf inputs. Without `returned`, the module is taken to return each
    output once. The `traced` graph is not modified: a copy is prepared
    for planning. Raises `TorchError` for nodes that cannot be planned, such as symbolic sizes,
    collectives and effects.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        forward_outputs: int,
        results: Iterable[torch.Tensor] = (),
        returned: Returned | None = None,
    ) -> None:
        for node in module.graph.nodes:
            refuse_node(node)
        self.module, self.traced, self.returned = module, module.graph, returned
        self.node_of: dict[fx.Node, fx.Node] = {}
        """Maps traced nodes to planned nodes; added copies of gradients have no traced node."""
        self.graph = copied(self.traced, self.node_of)
        _read_no_running_statistics(self.graph)
        _keep_recurrent_workspaces(self.graph)
        self.fake_mode = _fake_mode(self.graph)
        """The mode that created the fake tensors of the graph."""
        lay_as_kernels_do(self.graph, self.fake_mode)
        keys = {storage_key(self.fake_mode.from_tensor(each)) for each in results}
        inputs = self.graph.find_nodes(op="placeholder")
        kept_for = [n for n in inputs if keys.isdisjoint(map(storage_key, tensors_of(n)))]
        self.leaves = frozenset(map(inputs.index, kept_for))
        """Indices of the inputs whose gradients autograd keeps."""
        backward = backward_nodes(self.graph)
        copy_shared_gradients(self.graph, forward_outputs, kept_for, backward, self.fake_mode)
        self.nodes = list(self.graph.nodes)
        output = self.nodes[-1]
        self.outputs: tuple[fx.Node | None, ...] = tuple(output.args[0])
        self.output_descriptions = list(output.meta.get("desc", (None,) * len(self.outputs)))
        self.forward_outputs = forward_outputs
        self.bytes: list[int] = []
        self.base: list[fx.Node] = []
        """The node that represents each value: a step, a getitem of one, or a source."""
        self.values: dict[fx.Node, tuple[int, ...]] = {}
        """Maps each node to the storages of its tensors, in order."""
        self._number: dict[int, int] = {}
        self.steps: list[JointStep] = []
        self.step_of: dict[fx.Node, int] = {}
        self.sources: list[fx.Node] = []
        """Placeholders (including tangents) and constants."""
        tangents = filter(is_tangent, self.nodes)
        self._tangent_keys = {storage_key(t) for node in tangents for t in tensors_of(node)}
        for node in self._in_order():
            self._enter(node)
        for value in range(len(self.base)):
            self.base[value] = self._owner(self.base[value], value)

    @cached_property
    def boundary(self) -> int:
        """The number of steps of the forward pass."""
        return sum(step.node not in self._backward for step in self.steps)

    @cached_property
    def tangents(self) -> list[fx.Node]:
        """The tangents: gradients of outputs, which the backward pass receives."""
        return [node for node in self.sources if is_tangent(node)]

    @cached_property
    def incoming(self) -> Incoming:
        """Bytes of the gradients that enter the backward pass."""
        return incoming(self.graph, self.forward_outputs, self.leaves, self.returned)

    @cached_property
    def replacing(self) -> frozenset[int]:
        """New contents of inputs that the forward pass modifies; torch copies them and frees them.

        The caller does not receive them.
        """
        given = {getattr(node.meta.get("desc"), "output", None) for node in self.tangents}
        found: set[int] = set()
        others: set[int] = set()
        for index, node in enumerate(self.outputs):
            if node is not None:
                what = self.output_descriptions[index]
                is_new = isinstance(what, InputMutationAOTOutput) and what not in given
                (found if is_new else others).update(self.values[node])
        return frozenset(found - others - self.source_values)

    @cached_property
    def mutated(self) -> frozenset[fx.Node]:
        """Sources that the forward pass modifies."""
        by_description = {
            node.meta.get("desc"): node for node in self.sources if node.op == "placeholder"
        }
        described = (
            getattr(each, "mutated_input", None)
            for each in self.output_descriptions[: self.forward_outputs]
        )
        found = {by_description[each] for each in described if each in by_description}
        for step in self.steps:
            if mutates(step.node):
                found.update(n for n in step.node.all_input_nodes[:1] if n in self.sources)
        return frozenset(found)

    @cached_property
    def source_values(self) -> frozenset[int]:
        """Storages that exist before the forward pass."""
        return frozenset(
            value
            for node in self.sources
            if not is_tangent(node)
            for value in self.values.get(node, ())
        )

    @cached_property
    def _backward(self) -> frozenset[fx.Node]:
        return backward_nodes(self.graph)

    def _in_order(self) -> Iterator[fx.Node]:
        behind = self._backward
        yield from (node for node in self.nodes if node not in behind)
        yield from (node for node in self.nodes if node in behind)

    def _enter(self, node: fx.Node) -> None:
        if node.op == "output":
            return
        if node.op in ("placeholder", "get_attr"):
            self.sources.append(node)
        keys = set(map(storage_key, tensors_of(node)))
        is_new = not keys <= self._number.keys() | self._tangent_keys
        is_step = node.op == "call_function" and node.target is not operator.getitem
        is_step = is_step and (is_new or mutates(node))
        known = len(self.bytes)
        self.values[node] = tuple(self._value(tensor, node) for tensor in tensors_of(node))
        if is_step:
            reads = dict.fromkeys(
                value for each in node.all_input_nodes for value in self.values[each]
            )
            self.step_of[node] = len(self.steps)
            self.steps.append(JointStep(node, tuple(reads), tuple(range(known, len(self.bytes)))))

    def _value(self, tensor: torch.Tensor, node: fx.Node) -> int:
        key = storage_key(tensor)
        if key in self._tangent_keys:
            return self._value_of_tangent(tensor, node)
        if key not in self._number:
            self._number[key] = len(self.bytes)
            self.bytes.append(allocated_bytes(tensor))
            self.base.append(node)
        return self._number[key]

    def _value_of_tangent(self, tensor: torch.Tensor, node: fx.Node) -> int:
        """Return the value of a tangent or of its view; torch traces tangents in one storage."""
        if not is_tangent(node):
            key = storage_key(tensor)
            viewed = (n for n in node.all_input_nodes if key in map(storage_key, tensors_of(n)))
            return self.values[next(viewed)][0]
        self.bytes.append(allocated_bytes(tensor))
        self.base.append(node)
        return len(self.base) - 1

    def _owner(self, node: fx.Node, value: int) -> fx.Node:
        """Return the getitem of this value if the node has several outputs, else the node."""
        if isinstance(node.meta.get("val"), torch.Tensor):
            return node
        for user in node.users:
            if user.target is operator.getitem and self.values.get(user) == (value,):
                return user
        return node


def copied(graph: fx.Graph, node_of: dict[fx.Node, fx.Node]) -> fx.Graph:
    """Return a copy of the graph, and add to `node_of` the copy of each node."""
    made = fx.Graph()
    returned = made.graph_copy(graph, node_of)
    (before,) = graph.find_nodes(op="output")
    made.output(returned).meta = dict(before.meta)
    return made


def _fake_mode(graph: fx.Graph) -> Any:
    modes = (getattr(t, "fake_mode", None) for node in graph.nodes for t in tensors_of(node))
    return next(mode for mode in modes if mode is not None)


def backward_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes of the backward pass, including tangents.

    torch does not tag those of the backward pass of an autograd function: they are after the first
    node of the backward pass, and all their users belong to it.
    """
    found: set[fx.Node] = set()
    after: list[fx.Node] = []
    for node in graph.nodes:
        is_tagged = node.meta.get("partitioner_tag") == "is_backward"
        is_behind = any(each in found for each in node.all_input_nodes)
        if is_tangent(node) or is_tagged or is_behind:
            found.add(node)
        if node.op == "call_function" and (after or node in found):
            after.append(node)
    for node in reversed(after):
        if node.users and all(each in found and each.op != "output" for each in node.users):
            found.add(node)
    return frozenset(found)


def is_random(node: fx.Node) -> bool:
    """Return whether a node draws random numbers, and draws them again from the same state."""
    return draws(node) and not _makes_seeds(node)


def draws(node: fx.Node) -> bool:
    """Return whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def _makes_seeds(node: fx.Node) -> bool:
    """Return whether a node is inductor's op that draws a few seeds, of which all else is made."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in ("prims::inductor_seed", "prims::inductor_seeds")


def has_effects(node: fx.Node) -> bool:
    """Return whether a node has side effects, which must not happen twice."""
    called = called_op(node)
    is_inside = called is not node.target
    is_eager = called in (EAGER, EAGER_BACKWARD)
    return mutates(node) or is_eager or (is_inside and bool(effect_of(called)))


def runs_once(node: fx.Node) -> bool:
    """Return whether a node must not be recomputed.

    Such a node has side effects, or draws random numbers inside a wrapper that hides the state, or
    makes seeds.
    """
    called = called_op(node)
    is_inside = called is not node.target
    is_drawn = torch.Tag.nondeterministic_seeded in getattr(called, "tags", ())
    return has_effects(node) or (is_inside and is_drawn) or _makes_seeds(node)


def mutates(node: fx.Node) -> bool:
    """Return whether a node writes into an operand."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _read_no_running_statistics(graph: fx.Graph) -> None:
    for node in graph.nodes:
        index = NORM_BACKWARD.get(node.target, -1)
        if index != -1 and (index is None or node.args[index]):
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _keep_recurrent_workspaces(graph: fx.Graph) -> None:
    """Switch oneDNN's recurrent layers to training if their workspace is read.

    If the input requires no gradient, torch traces the inference form, which has no workspace.
    Then the backward pass fails under every backend of torch.compile, though it works in eager
    mode.
    """
    target = aten.mkldnn_rnn_layer.default
    for node in graph.find_nodes(op="call_function", target=target):
        if any(user.args[1] == RNN_WORKSPACE and user.users for user in node.users):
            node.args = (*node.args[:-1], True)
