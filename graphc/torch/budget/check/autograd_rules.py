"""Rules of autograd for gradients that leave the backward graph, for the checker.

It uses the joint graph as torch traced it, and shares no code with the planner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.check.contents import Numbers, Tree, Walk, tensors_in
from graphc.torch.budget.check.graphs import StepGraphs
from graphc.torch.budget.check.returned import described_outputs, is_tangent, placeholders


def returned_by(graph: fx.Graph) -> tuple[Any, ...]:
    """Return the output values of a graph."""
    (output,) = graph.find_nodes(op="output")
    return tuple(output.args[0])


def kept_gradients(
    joint: fx.Graph, forward_outputs: int, leaves: Collection[int]
) -> dict[int, fx.Node]:
    """Map output indices of the backward graph to the `leaves` whose gradients they are.

    Autograd keeps these gradients as they are returned, or copies them.
    """
    inputs = {
        node.meta["desc"]: node
        for index, node in enumerate(placeholders(joint))
        if index in leaves and "desc" in node.meta
    }
    outputs = enumerate(described_outputs(joint)[forward_outputs:])
    of = {index: getattr(what, "grad_of", None) for index, (what, node) in outputs if node}
    return {index: inputs[what] for index, what in of.items() if what in inputs}


def why_copied(returned: Sequence[fx.Node | None], index: int, variable: fx.Node) -> str | None:
    """Return the reason why autograd would copy a gradient outside the plan, or None.

    Autograd keeps a tensor without other owners if it has the strides of a dense variable, or is
    contiguous if the variable is not dense.
    """
    node = returned[index]
    assert node is not None
    if node.op != "call_function":
        return f"an input of the graph is returned as the gradient of {variable.name}"
    if sum(each is node for each in returned) > 1:
        return f"the gradient of {variable.name} is returned twice"
    gradient, kept = node.meta["val"], variable.meta["val"]
    if _is_dense(kept):
        sizes = zip(gradient.shape, gradient.stride(), kept.stride(), strict=True)
        is_kept = all(one != 0 if size == 1 else one == other for size, one, other in sizes)
    else:
        is_kept = gradient.is_contiguous()
    if is_kept:
        return None
    return f"the gradient of {variable.name} has the strides {tuple(gradient.stride())}"


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements are contiguous and distinct for some permutation of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def new_contents(joint: fx.Graph, forward_outputs: int) -> list[int]:
    """Return the indices of outputs that torch copies into inputs, and frees before backward."""
    given = {getattr(node.meta.get("desc"), "output", None) for node in placeholders(joint)}
    outputs = enumerate(described_outputs(joint)[:forward_outputs])
    return [
        index
        for index, (what, _) in outputs
        if type(what).__name__ == "InputMutationAOTOutput" and what not in given
    ]


def modified_inputs(joint: fx.Graph, forward_outputs: int) -> list[tuple[int, int]]:
    """Return the index of each output that torch copies into an input, with the input's index.

    Tangents are not counted among the inputs.
    """
    given = [node.meta.get("desc") for node in placeholders(joint) if not is_tangent(node)]
    modified = (
        getattr(what, "mutated_input", None)
        for what, _ in described_outputs(joint)[:forward_outputs]
    )
    return [(index, given.index(each)) for index, each in enumerate(modified) if each]


class Traced:
    """Value numbers of a joint graph: computations, returned values and written sources."""

    def __init__(self, plan: StepGraphs, numbers: Numbers) -> None:
        walk = Walk(numbers, is_traced=True)
        given = placeholders(plan.joint)
        self.sources = [node for node in given if not is_tangent(node)]
        self.tangents = [node for node in given if is_tangent(node)]
        for index, node in enumerate(self.sources):
            walk.env[node] = walk.outside(node, "source", index)
        for index, node in enumerate(self.tangents):
            walk.env[node] = walk.outside(node, "tangent", index)
        self.nodes: dict[int, fx.Node] = {}
        """The first node of each computation."""
        self.first: dict[fx.Node, fx.Node] = {}
        """Maps each node that computes to the first node of its computation."""
        self.by_name = {node.name: node for node in plan.joint.nodes}
        self.draws: set[int | None] = set()
        for node in plan.joint.nodes:
            if node.op in ("get_attr", "call_function"):
                done = walk.do(node)
                if done.computes is not None:
                    self.first[node] = self.nodes.setdefault(done.computes, node)
                    self.draws.add(done.draws)
        self.returns = [
            walk.seen(node) if isinstance(node, fx.Node) else None
            for node in returned_by(plan.joint)
        ]
        self.left = [written(walk.env[node]) for node in self.sources]

    def namesake(self, node: fx.Node) -> fx.Node | None:
        """Return the node with the name and op of an emitted one, or None."""
        found = self.by_name.get(node.name)
        return found if found is not None and found.target == node.target else None


def written(tree: Tree) -> list[int]:
    """Return the numbers of the writes into the storages of a value."""
    return [tensor.storage.written for tensor in tensors_in(tree)]
