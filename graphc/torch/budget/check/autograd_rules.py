"""Model of autograd's memory use between and after the graphs of a step, for the checker.

It uses the joint graph as torch traced it, and shares no code with the planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.check.contents import Numbers, Tree, Walk, in_blocks, tensors_in
from graphc.torch.budget.check.graphs import StepGraphs
from graphc.torch.budget.check.returned import Returned


@dataclass
class Gradients:
    """Bytes that autograd uses for the gradients of the forward pass's results."""

    kept: int = 0
    """Gradients that are live until the end of the step, without the tangents."""
    workspace: int = 0
    """Temporary bytes at the forward/backward boundary."""
    at_end: int = 0
    """Temporary bytes after the backward graph."""
    made: dict[fx.Node, int] = field(default_factory=dict)
    """Bytes of the tangents that autograd makes, and frees after their last use."""


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """Return the placeholders of a graph."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def returned_by(graph: fx.Graph) -> tuple[Any, ...]:
    """Return the output values of a graph."""
    return tuple(_output(graph).args[0])


def is_tangent(node: fx.Node) -> bool:
    """Return whether an input of a joint graph is a tangent."""
    described = type(node.meta.get("desc")).__name__
    return described == "TangentAOTInput" or str(node.target).startswith("tangents_")


class Buffer:
    """The sum of the gradients of one tensor, as autograd adds them up.

    Autograd takes the first gradient as it is, unless a view's has to be padded. It adds a second
    to a new tensor, and others into that.
    """

    def __init__(self) -> None:
        self.count = self.given = self.padding = 0

    def add(self, view: fx.Node, count: int, padding: int = 0) -> None:
        """Add the gradients that the caller gives for a tensor that is returned `count` times."""
        if count:
            self.count += count
            self.given += count * dense_bytes(view.meta["val"])
            self.padding = max(self.padding, padding)

    @property
    def is_new(self) -> bool:
        """True if the sum is in a storage of its own."""
        return self.count != 1 or self.padding > 0

    @property
    def workspace(self) -> int:
        """Bytes of a padded gradient while it is added."""
        return self.padding if self.count > 1 else 0


def gradients_at_boundary(
    joint: fx.Graph, forward_outputs: int, leaves: Collection[int], returned: Returned | None
) -> Gradients:
    """Return the bytes of the gradients that the caller gives and that autograd adds up."""
    outputs = [
        (what, node)
        for what, node in _described_outputs(joint)[:forward_outputs]
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    times = {what: _times(what, node, returned) for what, node in outputs}
    given = placeholders(joint)
    tangents = {getattr(n.meta.get("desc"), "output", None): n for n in given if is_tangent(n)}
    tangents.pop(None, None)
    views: dict[int, list[tuple[fx.Node, int]]] = defaultdict(list)
    for what, node in outputs:
        if what not in tangents:
            views[_storage(node)].append((node, times[what]))
    found = Gradients(kept=0 if returned is None else returned.other_bytes)
    slots = {node: what for what, node in outputs if what in tangents}
    bases: dict[int, fx.Node] = {}
    for node in slots:
        first = bases.setdefault(_storage(node), node)
        if dense_bytes(node.meta["val"]) > dense_bytes(first.meta["val"]):
            bases[_storage(node)] = node
    made_later = 0  # zeros and copies, which follow all sums
    for what, node in outputs:
        if what not in tangents:
            continue
        buffer, tangent = Buffer(), tangents[what]
        if what == slots[node]:
            for other, twin in outputs:
                buffer.add(node, times[other] if twin is node and other in tangents else 0)
            direct = buffer.count
            for view, count in views[_storage(node)] if node is bases[_storage(node)] else ():
                buffer.add(view, count, _padded(view))
            if not buffer.is_new and (not direct or _comes_as_traced(node, tangent)):
                continue
        found.kept += buffer.given
        found.made[tangent] = _strided_bytes(tangent.meta["val"])
        if not (buffer.count and buffer.is_new):
            made_later += found.made[tangent]
        found.workspace = max(found.workspace, buffer.workspace)
    computed = {what.grad_of for what, n in _described_outputs(joint)[forward_outputs:] if n}
    for index in leaves if returned is not None else ():
        leaf, buffer = given[index], Buffer()
        if not isinstance(leaf.meta.get("val"), torch.Tensor) or is_tangent(leaf):
            continue
        buffer.add(leaf, returned.inputs.get(index, 0) if returned is not None else 0)
        for view, count in views[_storage(leaf)]:
            buffer.add(view, count, _padded(view))
        if buffer.count:
            size = dense_bytes(leaf.meta["val"])
            is_summed_later = not buffer.is_new and leaf.meta.get("desc") in computed
            found.kept += buffer.given + (0 if is_summed_later else size)
            found.at_end = max(found.at_end, size if is_summed_later else 0)
            found.workspace = max(found.workspace, buffer.workspace)
    found.workspace = max(0, found.workspace - made_later)
    return found


def _times(what: Any, node: fx.Node, returned: Returned | None) -> int:
    """Return how often the module returns a tensor that takes a gradient."""
    if not _is_users(what):
        return 0
    if returned is not None:
        return returned.outputs.get(what.idx, 0)
    return int(node.meta["val"].is_floating_point() and "detach" not in str(node.target))


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _comes_as_traced(node: fx.Node, tangent: fx.Node) -> bool:
    """Return whether a gradient like the output has the strides of the tangent."""
    like = torch.empty_like(node.meta["val"], device="meta")
    return bool(like.stride() == tangent.meta["val"].stride())


def _padded(view: fx.Node) -> int:
    """Return the bytes of a view's gradient while autograd pads it; 0 if it is only rearranged."""
    chain = [view]
    while chain[-1].op == "call_function" and chain[-1].all_input_nodes:
        chain.append(chain[-1].all_input_nodes[0])
    parts = [node.meta["val"] for node in chain if "getitem" in str(node.target)]
    fakes = [node.meta.get("val") for node in chain]
    storage = fakes[0].untyped_storage()._cdata
    own = [
        each
        for each in fakes
        if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == storage
    ]
    padded = [(small, big) for small, big in pairwise(own) if small.numel() != big.numel()]
    most = before = 0
    for small, big in padded:
        size = dense_bytes(big)
        zeros = size - dense_bytes(small) if any(small is part for part in parts) else 0
        most, before = max(most, before + zeros + size), size
    return most


def _strided_bytes(fake: torch.Tensor) -> int:
    """Return the bytes of a new storage for a tensor of these strides."""
    storage = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
    return in_blocks(storage.untyped_storage().nbytes(), fake.device)


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
    outputs = enumerate(_described_outputs(joint)[forward_outputs:])
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


def dense_bytes(fake: torch.Tensor) -> int:
    """Return the bytes of a tensor in a storage of its own."""
    return in_blocks(fake.numel() * fake.element_size(), fake.device)


def _is_users(what: Any) -> bool:
    """Return whether the module itself returns an output, rather than torch adding it."""
    return type(what).__name__ == "PlainAOTOutput"


def new_contents(joint: fx.Graph, forward_outputs: int) -> list[int]:
    """Return the indices of outputs that torch copies into inputs, and frees before backward."""
    given = {getattr(node.meta.get("desc"), "output", None) for node in placeholders(joint)}
    outputs = enumerate(_described_outputs(joint)[:forward_outputs])
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
        for what, _ in _described_outputs(joint)[:forward_outputs]
    )
    return [(index, given.index(each)) for index, each in enumerate(modified) if each]


def _output(graph: fx.Graph) -> fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _described_outputs(graph: fx.Graph) -> list[tuple[Any, Any]]:
    """Return torch's description of each output, with its node."""
    output = _output(graph)
    returned = tuple(output.args[0])
    return list(zip(output.meta.get("desc", (None,) * len(returned)), returned, strict=True))


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
