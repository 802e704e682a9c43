"""Plans of one symbolic trace: new sizes are planned without tracing again.

After a change of sizes, Dynamo traces a module with symbolic sizes, and guards every decision that
depends on them. A call whose sizes pass the guards runs the same ops, so its joint graph is the
symbolic one with all sizes replaced by numbers (`with_sizes`). AOTAutograd compiles placeholders
of the two graphs (`Sized.graphs`) once; they dispatch to the plan of the call's sizes.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from graphc.torch.budget.check.returned import Returned, is_tangent
from graphc.torch.budget.trace.joint import aten, backward_nodes, is_random, tensors_of
from graphc.torch.budget.trace.refusals import SYMBOLS
from graphc.torch.budget.trace.runner import Boxed
from graphc.torch.budget.trace.tracing import refuse_new_plan
from graphc.torch.private import SavedForBackwardsAOTOutput

Graphs = tuple[fx.GraphModule, fx.GraphModule]


class UnsizedError(Exception):
    """A symbolic trace cannot be planned; the step is traced with fixed sizes instead."""


class _Plan(NamedTuple):
    number: int
    forward: Boxed
    backward: Boxed
    outputs: int
    """The number of outputs of the forward graph, including the saved tensors."""


def is_sized(joint: fx.GraphModule) -> bool:
    """Return whether a joint graph has sizes that are symbols, and none that depends on data."""
    inputs = joint.graph.find_nodes(op="placeholder")
    return any(map(_free, inputs)) and not any(
        free_unbacked_symbols(each) for node in joint.graph.nodes for each in _values(node)
    )


class Sized:
    """The plans of one symbolic joint graph, by the sizes of its inputs.

    `partition` returns the forward and backward graph of a joint graph with fixed sizes, `run_of`
    the function that runs a graph.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        forward_outputs: int,
        returned: Returned | None,
        partition: Callable[[fx.GraphModule, Returned | None], Graphs],
        run_of: Callable[[fx.GraphModule, Any], Boxed],
    ) -> None:
        self.joint, self.forward_outputs, self.returned = joint, forward_outputs, returned
        self.partition, self.run_of = partition, run_of
        given = [n for n in joint.graph.find_nodes(op="placeholder") if not is_tangent(n)]
        self.varying = [index for index, n in enumerate(given) if _free(n)]
        after = backward_nodes(joint.graph)
        before = [node for node in joint.graph.nodes if node not in after]
        self.most_saved = len(before) + sum(map(is_random, before))
        """The number of tensors that AOTAutograd saves; a plan that saves fewer is padded."""
        self.plans: list[_Plan] = []
        self._known: dict[Any, _Plan] = {}
        self._lock = threading.Lock()
        self._nothing = torch.empty(0)
        (output,) = joint.graph.find_nodes(op="output")
        self.outputs = list(output.args[0])
        self.descriptions = list(output.meta["desc"])
        for node in joint.graph.nodes:
            if node.meta.get("saved_tensor_with_no_vc_check", False):
                raise UnsizedError(f"{node.name} is saved without a version check")
        if any(not _is_tensor(node) for node in self.outputs if node is not None):
            raise UnsizedError("a size is returned")

    def graphs(self) -> Graphs:
        """Return graphs with the inputs and outputs of all plans, which are never run.

        The forward graph also returns the number of the plan, as an integer that is saved.
        """
        forward, backward = fx.Graph(), fx.Graph()
        inputs = self.joint.graph.find_nodes(op="placeholder")
        given = [_placeholder(forward, n) for n in inputs if not is_tangent(n)]
        number = next(n for n in given if isinstance(n.meta["val"], torch.SymInt))
        with next(t for n in inputs for t in tensors_of(n)).fake_mode:
            saved = {"val": torch.empty(0)}
        kept = [_result(forward, saved) for _ in range(self.most_saved)]
        leaving = self.outputs[: self.forward_outputs]
        outputs = [None if node is None else _result(forward, node.meta) for node in leaving]
        described = self.descriptions[: self.forward_outputs]
        described += [SavedForBackwardsAOTOutput(index) for index in range(len(kept) + 1)]
        forward.output((*outputs, *kept, number)).meta["desc"] = described
        for node in (number, *kept):
            _placeholder(backward, node)
        for node in filter(is_tangent, inputs):
            _placeholder(backward, node)
        gradients = self.outputs[self.forward_outputs :]
        returned = tuple(
            None if node is None else _result(backward, node.meta) for node in gradients
        )
        backward.output(returned).meta["desc"] = self.descriptions[self.forward_outputs :]
        return fx.GraphModule(self.joint, forward), fx.GraphModule(self.joint, backward)

    def forward(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the forward graph of the plan for the sizes of the arguments."""
        plan = self._plan_for(args)
        results = plan.forward(args)
        padding = self.most_saved + self.forward_outputs - plan.outputs
        return (*results, *([self._nothing] * padding), plan.number)

    def backward(self, args: list[Any]) -> tuple[Any, ...]:
        """Run the backward graph of the plan whose number was saved."""
        plan = self.plans[args[0]]
        saved = plan.outputs - self.forward_outputs
        given = [*args[1 : 1 + saved], *args[1 + self.most_saved :]]
        args.clear()
        gradients: tuple[Any, ...] = plan.backward(given)
        return gradients

    forward._boxed_call = backward._boxed_call = True  # type: ignore[attr-defined]

    def _plan_for(self, args: Sequence[Any]) -> _Plan:
        """Return the plan for these sizes; other threads may plan or run at the same time."""
        sizes = tuple(_sizes(args[index]) for index in self.varying)
        if sizes not in self._known:
            refuse_new_plan(len(self.plans))
            made = self._planned(args)
            with self._lock:
                self._known[sizes] = made._replace(number=len(self.plans))
                self.plans.append(self._known[sizes])
        return self._known[sizes]

    def _planned(self, args: Sequence[Any]) -> _Plan:
        try:
            joint, bindings = with_sizes(self.joint, args)
            returned = self.returned
            if returned is not None:
                other_bytes = _number(returned.other_bytes, bindings)
                returned = replace(returned, other_bytes=other_bytes)
        except Exception as error:
            raise UnsizedError(str(error)) from error
        forward, backward = self.partition(joint, returned)
        (output,) = forward.graph.find_nodes(op="output")
        count = len(output.args[0])
        if count > self.forward_outputs + self.most_saved:
            raise UnsizedError(f"a plan returns {count} tensors")
        runs = self.run_of(forward, "forward"), self.run_of(backward, "backward")
        return _Plan(-1, *runs, count)


def with_sizes(
    module: fx.GraphModule, args: Sequence[Any]
) -> tuple[fx.GraphModule, dict[Any, int]]:
    """Return a joint graph with the sizes of these arguments, and the value of each symbol.

    Each op runs on fake tensors. Sizes become constants; integer inputs stay, without uses. Slices
    of whole tensors are dropped, as a trace with fixed sizes has none.
    """
    graph, made = fx.Graph(), dict[fx.Node, Any]()
    values: dict[fx.Node, Any] = {}
    bindings: dict[Any, int] = {}
    given = iter(args)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "output":
                graph.output(fx.map_arg(node.args[0], made.__getitem__)).meta = dict(node.meta)
                break
            if is_tangent(node):
                value = _like(node.meta["val"], bindings)
            elif node.op == "placeholder":
                value = next(given)
                if isinstance(value, int):
                    bindings[node.meta["val"].node.expr] = value
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(module)
            else:
                value = node.target(
                    *fx.map_arg(node.args, values.__getitem__),
                    **fx.map_arg(dict(node.kwargs), values.__getitem__),
                )
            if node.op in ("placeholder", "get_attr") and isinstance(value, torch.Tensor):
                value = value if is_tangent(node) else mode.from_tensor(value)
            values[node] = value
            whole = _whole(node, values)
            if whole is not None:
                values[node], made[node] = values[whole], made[whole]
                continue
            if node.op == "placeholder" or not isinstance(value, int | float):
                made[node] = graph.node_copy(node, made.__getitem__)
                made[node].meta = {**node.meta, "val": value}
            if isinstance(value, int | float):
                made[node] = value
    return fx.GraphModule(module, graph), bindings


def _whole(node: fx.Node, values: Mapping[fx.Node, Any]) -> fx.Node | None:
    """Return the operand of a slice of a whole tensor, or of its gradient; else None."""
    if node.target not in (aten.slice.Tensor, aten.slice_backward.default):
        return None
    if any(user.op == "output" for user in node.users):
        return None
    operand = node.args[0]
    made, given = values[node], values[operand]
    is_same = made.shape == given.shape and made.stride() == given.stride()
    return operand if is_same else None


def _like(tangent: Any, bindings: Mapping[Any, int]) -> Any:
    """Return a new tensor with the sizes and strides of a symbolic one."""
    if not isinstance(tangent, torch.Tensor):
        return tangent
    shape, stride = ([_number(n, bindings) for n in of] for of in (tangent.shape, tangent.stride()))
    return torch.empty_strided(shape, stride, dtype=tangent.dtype, device=tangent.device)


def _number(size: Any, bindings: Mapping[Any, int]) -> int:
    return int(size.node.expr.xreplace(bindings) if isinstance(size, torch.SymInt) else size)


def _sizes(argument: Any) -> Any:
    """Return what a plan depends on: an integer itself, or the layout of a tensor."""
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride(), argument.storage_offset()
    return argument


def _values(node: fx.Node) -> list[Any]:
    """Return the tensors and symbols that a node produces."""
    leaves = tree_leaves(node.meta.get("val"))
    return [each for each in leaves if isinstance(each, (torch.Tensor, *SYMBOLS))]


def _free(node: fx.Node) -> bool:
    return any(map(free_symbols, _values(node)))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _placeholder(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.placeholder(node.name)
    made.meta = dict(node.meta)
    return made


def _result(graph: fx.Graph, meta: Mapping[str, Any]) -> fx.Node:
    """Return a node with these metadata, which represents a result of any plan."""
    made = graph.call_function(aten.empty.memory_format, ([0],))
    made.meta = dict(meta)
    return made
