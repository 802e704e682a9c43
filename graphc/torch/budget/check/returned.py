"""Gradients of the tensors that a module returns: the bytes that autograd uses for them.

The caller gives a gradient for each returned tensor that requires grad, and keeps it. A tangent of
the backward graph is such a gradient itself, or a tensor that autograd makes: a sum for a tensor
that is returned twice or with views of it, zeros, or a copy with the traced strides. Tensors that
autograd makes are freed after their last use.

The bytes are upper bounds: at most one gradient too many for each tensor that is returned with
views, and exact without views. Plans and their checker share these rules, which are tested against
measured peaks.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.check.contents import in_blocks
from graphc.torch.versions import is_before

JOINS_IN_PLACE = (2, 13)
"""The first release of torch that never copies the sum of gradients."""

REARRANGING = {"alias", "permute", "squeeze", "t", "transpose", "unsqueeze", "view"}
"""Views in whose backward pass autograd makes no tensor."""


@dataclass(frozen=True)
class Returned:
    """Counts of the outputs and inputs of a graph that a module returns; inputs require grad."""

    outputs: Mapping[int, int]
    """Counts by the index of the output."""
    inputs: Mapping[int, int]
    """Counts by the index of the input."""
    other_bytes: int = 0
    """Gradients of leaves that the graph does not read: the caller's, and those in ``.grad``."""


@dataclass
class Incoming:
    """Bytes of the gradients that enter a backward pass, and those that autograd makes of them."""

    kept: int = 0
    """Gradients that are live until the end of the step and are not tangents of the graph."""
    workspace: int = 0
    """Temporary bytes at the forward/backward boundary, while autograd pads gradients of views."""
    spare: int = 0
    """Bytes among these that autograd may not use."""
    made: dict[fx.Node, int] = field(default_factory=dict)
    """Bytes of the tangents that autograd makes."""

    def join(self, given: Sequence[fx.Node]) -> None:
        """Add gradients of a tensor and its views, which autograd adds up.

        Two padded gradients are live at a time if there are several, one after the other or for
        several results of one op.
        """
        self.kept += sum(dense_bytes(node.meta["val"]) for node in given)
        sizes = [size for node in given for size in _padded(node)]
        self.workspace = max(self.workspace, max(sizes, default=0) * min(2, len(given)))


def incoming(
    joint: fx.Graph, forward_outputs: int, leaves: Collection[int], returned: Returned | None
) -> Incoming:
    """Return the bytes for a joint graph; `leaves` are indices of its inputs.

    Without `returned`, the module is taken to return each output once.
    """
    found = Incoming(kept=0 if returned is None else returned.other_bytes)
    inputs = placeholders(joint)
    of = {getattr(n.meta.get("desc"), "output", None): n for n in inputs if is_tangent(n)}
    counts: dict[Any, int] = {}
    nodes: dict[Any, fx.Node] = {}
    views: dict[int, list[fx.Node]] = defaultdict(list)
    for what, node in described_outputs(joint)[:forward_outputs]:
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            nodes[what], counts[what] = node, _count(what, node, returned)
            if what not in of and counts[what]:
                views[_storage(node)] += [node] * counts[what]
    groups: dict[Any, list[Any]] = defaultdict(list)
    """Outputs with a tangent by node, or by storage if there are views of it."""
    for what in filter(of.__contains__, nodes):
        storage = _storage(nodes[what])
        groups[storage if storage in views else nodes[what]].append(what)
    for group in groups.values():
        viewing = views.get(_storage(nodes[group[0]]), [])
        given = [nodes[what] for what in group for _ in range(counts[what])] + viewing
        if len(group) == len(given) == 1 and _is_given(given[0], nodes[group[0]], of[group[0]]):
            continue
        found.join(given)
        if len(given) > 1 and is_before(torch.__version__, JOINS_IN_PLACE):
            copied = sum(dense_bytes(nodes[what].meta["val"]) for what in group)
            found.kept, found.spare = found.kept + copied, found.spare + copied
        made = {of[what]: _strided_bytes(of[what].meta["val"]) for what in group}
        found.made |= made
        found.spare += sum(made.values()) if viewing else 0
    for index in leaves if returned is not None else ():
        leaf = inputs[index]
        if is_tangent(leaf) or not isinstance(leaf.meta.get("val"), torch.Tensor):
            continue
        direct = returned.inputs.get(index, 0) if returned is not None else 0
        given = [leaf] * direct + views.get(_storage(leaf), [])
        if given:
            found.join([*given, leaf])  # the last one is the sum with the leaf's own gradient
            found.spare += dense_bytes(leaf.meta["val"])
    found.spare += found.workspace
    return found


def _is_given(given: fx.Node, output: fx.Node, tangent: fx.Node) -> bool:
    """Return whether a tangent is the caller's gradient for an output, or a view of it."""
    if given is not output:
        return not _padded(given)
    like = torch.empty_like(output.meta["val"], device="meta")
    return bool(like.stride() == tangent.meta["val"].stride())


def _count(what: Any, node: fx.Node, returned: Returned | None) -> int:
    """Return how many gradients the caller may give for an output."""
    if type(what).__name__ != "PlainAOTOutput":  # torch returns it, not the module
        return 0
    if returned is not None:
        return returned.outputs.get(what.idx, 0)
    return int(node.meta["val"].is_floating_point() and "detach" not in str(node.target))


def _padded(view: fx.Node) -> list[int]:
    """Return the bytes of each tensor to whose shape autograd pads or sums the gradient of a view.

    The list is empty if all ops between them only rearrange elements.
    """
    sizes: list[int] = []
    node = view
    while node.op == "call_function" and node.all_input_nodes:
        op = node.all_input_nodes[0] if node.target is operator.getitem else node
        viewed = next(iter(op.all_input_nodes), None)
        if viewed is None or not isinstance(viewed.meta.get("val"), torch.Tensor):
            break
        if _storage(viewed) != _storage(view):
            break
        if str(op.target).split(".")[1] not in REARRANGING:
            sizes.append(dense_bytes(viewed.meta["val"]))
        node = viewed
    return sizes


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _strided_bytes(fake: torch.Tensor) -> int:
    """Return the bytes of a new storage for a tensor of these strides."""
    storage = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
    return in_blocks(storage.untyped_storage().nbytes(), fake.device)


def dense_bytes(fake: torch.Tensor) -> int:
    """Return the bytes of a tensor in a storage of its own."""
    return in_blocks(fake.numel() * fake.element_size(), fake.device)


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """Return the placeholders of a graph."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def is_tangent(node: fx.Node) -> bool:
    """Return whether a node is a tangent, a gradient that the backward pass receives."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def described_outputs(graph: fx.Graph) -> list[tuple[Any, Any]]:
    """Return torch's description of each output, with its node."""
    (output,) = graph.find_nodes(op="output")
    returned = tuple(output.args[0])
    return list(zip(output.meta.get("desc", (None,) * len(returned)), returned, strict=True))
