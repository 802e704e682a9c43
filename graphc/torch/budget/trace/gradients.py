"""Gradients that enter and leave the backward pass: the bytes that autograd uses for them.

The caller gives a gradient for each returned tensor that requires grad, and keeps it. A tangent of
the backward graph is such a gradient itself, or a tensor that autograd makes: a sum for tensors
that are returned twice or view one another, zeros, or a copy with the traced strides. Tensors that
autograd makes are freed after their last use.

A gradient of a parameter becomes its ``.grad`` if the tensor has no other owner and has the strides
of the parameter. Otherwise autograd copies it after the backward graph returns
(``torch/csrc/autograd/functions/accumulate_grad.h``). `copy_shared_gradients` makes these copies
inside the joint graph, so that plans count them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.check.returned import Returned
from graphc.torch.budget.trace.measure import bytes_alone, in_blocks
from graphc.torch.private import PlainAOTOutput


@dataclass
class Incoming:
    """Bytes of the gradients that enter the backward pass."""

    kept: int = 0
    """Gradients that are live until the end of the step and are not tangents of the graph."""
    workspace: int = 0
    """Temporary bytes while autograd adds gradients, at the forward/backward boundary."""
    at_end: int = 0
    """Temporary bytes while autograd adds gradients, after the backward graph."""
    made: dict[fx.Node, int] = field(default_factory=dict)
    """Tangents that autograd makes, with their bytes."""


@dataclass(frozen=True)
class _Part:
    """A returned tensor, how often it is returned, and the bytes that pad its gradient."""

    node: fx.Node
    count: int
    padding: int = 0

    @property
    def bytes(self) -> int:
        return self.count * bytes_alone(self.node.meta["val"])


class Returns:
    """The returned tensors of a joint graph; `storage_of` identifies the storage of a node."""

    def __init__(
        self,
        outputs: Sequence[tuple[Any, fx.Node | None]],
        tangents: Sequence[fx.Node],
        returned: Returned | None,
        storage_of: Callable[[fx.Node], Any],
    ) -> None:
        self.storage_of, self.returned = storage_of, returned
        self.outputs = {what: node for what, node in outputs if node is not None}
        self.tangents = {
            node: node.meta["desc"].output
            for node in tangents
            if getattr(node.meta.get("desc"), "output", None) in self.outputs
        }
        self.counts = {what: self._count(what, node) for what, node in self.outputs.items()}
        summed = set(self.tangents.values())
        self.views = [what for what, n in self.counts.items() if n and what not in summed]

    @property
    def are_joined(self) -> bool:
        """True if autograd adds gradients of returned tensors: of duplicates or of views."""
        return bool(self.views) or any(count > 1 for count in self.counts.values())

    def _count(self, what: Any, node: fx.Node) -> int:
        if not isinstance(what, PlainAOTOutput):
            return 0
        return (
            int(_may_be_learned(node))
            if self.returned is None
            else self.returned.outputs.get(what.idx, 0)
        )

    def incoming(self, kept_for: Mapping[int, fx.Node], has_gradient: set[fx.Node]) -> Incoming:
        """Return the bytes; `kept_for` are leaves by index."""
        found = Incoming(kept=0 if self.returned is None else self.returned.other_bytes)
        for tangent in self.tangents:
            self._add_tangent(found, tangent)
        for index, node in kept_for.items() if self.returned is not None else ():
            self._add_leaf(found, index, node, node in has_gradient)
        # Zeros and copies follow the sums, when no gradient is padded any more.
        found.workspace = max(0, found.workspace - sum(self._late(n) for n in found.made))
        return found

    def _late(self, tangent: fx.Node) -> int:
        """Return the bytes of zeros or of a copy; 0 if a tangent is a sum or a padded gradient."""
        parts = self._parts(tangent)
        is_sum = sum(each.count for each in parts) > 1 or any(each.padding for each in parts)
        return 0 if is_sum else strided_bytes(tangent)

    def _parts(self, tangent: fx.Node) -> list[_Part]:
        """Return the tensors whose gradients a tangent sums up."""
        what = self.tangents[tangent]
        same = [t for t, other in self.tangents.items() if self._is_one(other, what)]
        if tangent is not same[-1]:  # autograd knows a tensor as the last output that it is
            return []
        directs = [self.tangents[each] for each in same]
        parts = [_Part(self.outputs[each], self.counts[each]) for each in directs]
        return [each for each in (*parts, *self._viewing(tangent)) if each.count]

    def _add_tangent(self, found: Incoming, tangent: fx.Node) -> None:
        parts = self._parts(tangent)
        if self._is_given(tangent, parts):
            return
        found.kept += sum(each.bytes for each in parts)
        found.made[tangent] = strided_bytes(tangent)
        if sum(each.count for each in parts) > 1:
            found.workspace = max(found.workspace, *(each.padding for each in parts))

    def _is_one(self, what: Any, other: Any) -> bool:
        return self.outputs[what] is self.outputs[other]

    def _is_given(self, tangent: fx.Node, parts: Sequence[_Part]) -> bool:
        """Return whether a tangent is a gradient of the caller, or a view of it."""
        if [(each.count, each.padding) for each in parts] != [(1, 0)]:
            return False
        (only,) = parts
        is_direct = only.node is self.outputs[self.tangents[tangent]]
        return not is_direct or _strides_given(only.node) == tangent.meta["val"].stride()

    def _viewing(self, tangent: fx.Node) -> list[_Part]:
        """Return the views whose gradients autograd adds to a tangent's."""
        storage = self.storage_of(self.outputs[self.tangents[tangent]])
        bases = [t for t, o in self.tangents.items() if self.storage_of(self.outputs[o]) == storage]
        if tangent is not max(bases[::-1], key=lambda each: bytes_alone(each.meta["val"])):
            return []
        return self._views_of(storage)

    def _views_of(self, storage: Any) -> list[_Part]:
        views = [what for what in self.views if self.storage_of(self.outputs[what]) == storage]
        return [
            _Part(self.outputs[what], self.counts[what], _padding(self.outputs[what]))
            for what in views
        ]

    def _add_leaf(self, found: Incoming, index: int, leaf: fx.Node, has_gradient: bool) -> None:
        """Add the gradients of a leaf if the module returns the leaf or views of it."""
        assert self.returned is not None
        direct = self.returned.inputs.get(index, 0)
        parts = [_Part(leaf, direct)] * bool(direct) + self._views_of(self.storage_of(leaf))
        if not parts:
            return
        found.kept += sum(each.bytes for each in parts)
        count, padding = sum(each.count for each in parts), max(each.padding for each in parts)
        if count > 1:
            found.workspace = max(found.workspace, padding)
        if count > 1 or padding or not has_gradient:
            found.kept += bytes_alone(leaf.meta["val"])
        else:
            found.at_end = max(found.at_end, bytes_alone(leaf.meta["val"]))


def strided_bytes(node: fx.Node) -> int:
    """Return the bytes of a new storage for a node's tensor with its strides."""
    value = node.meta["val"]
    if not value.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return in_blocks((last + 1) * value.element_size(), value.device)


def _may_be_learned(node: fx.Node) -> bool:
    """Return whether an output may have a gradient, as far as the graph shows."""
    value = node.meta.get("val")
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return is_float and node.target is not torch.ops.aten.detach.default


def _strides_given(node: fx.Node) -> tuple[int, ...]:
    """Return the strides of a gradient that is made like an output."""
    value = node.meta["val"]
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return tuple(torch.empty_like(like).stride())


def _padding(view: fx.Node) -> int:
    """Return the most bytes that the gradients of a view take, padded to what it views.

    The number is 0 if all ops between them rearrange elements without copying. The backward pass
    of an op with several results also makes zeros for the other results.
    """
    most = before = 0
    node = view
    while node.op == "call_function" and node.all_input_nodes:
        is_one_of_several = node.target is operator.getitem
        op = node.all_input_nodes[0] if is_one_of_several else node
        above = op.all_input_nodes[0]
        value, viewed = node.meta["val"], above.meta.get("val")
        if not isinstance(viewed, torch.Tensor):
            break
        if value.untyped_storage()._cdata != viewed.untyped_storage()._cdata:
            break
        if value.numel() != viewed.numel():
            size = bytes_alone(viewed)
            zeros = size - bytes_alone(value) if is_one_of_several else 0
            most, before = max(most, before + zeros + size), size
        node = above
    return most


aten = torch.ops.aten

OF_MODULES = ("nn_module_stack", "fwd_nn_module_stack", "stack_trace")
"""Metadata that a copy inherits from its node: the location in the program."""


def copy_shared_gradients(
    graph: fx.Graph,
    forward_outputs: int,
    kept_for: Iterable[fx.Node],
    made_behind: Collection[fx.Node],
    fake_mode: Any,
) -> None:
    """Replace each returned gradient that autograd would copy by a copy in the graph.

    Autograd keeps gradients of the inputs `kept_for`. It copies a gradient that is returned twice,
    that no node of the backward pass (`made_behind`) produces, or whose strides differ from its
    input's.
    """
    output = next(iter(graph.find_nodes(op="output")))
    inputs = {node.meta.get("desc"): node for node in kept_for}
    returned = list(output.args[0])
    of = {
        index: inputs.get(getattr(what, "grad_of", None))
        for index, what in enumerate(output.meta.get("desc", ()))
        if index >= forward_outputs
    }
    seen = {returned[index] for index, variable in of.items() if variable is None}
    for index, variable in of.items():
        node = returned[index]
        if node is None or variable is None:
            continue
        is_own = node not in seen and node in made_behind and node.op == "call_function"
        seen.add(node)
        if not is_own or not _obeys(node.meta["val"], variable.meta["val"]):
            behind = node if is_own and _is_whole(node) else output.prev
            order = _order(variable.meta["val"])
            returned[index] = _copied(graph, behind, node, order, fake_mode)
    output.args = (tuple(returned),)


def _is_whole(node: fx.Node) -> bool:
    """Return whether a gradient fills its storage and has one use, so it can be copied at once."""
    value = node.meta["val"]
    filled = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return filled and len(node.users) == 1


def _obeys(gradient: torch.Tensor, variable: torch.Tensor) -> bool:
    """Return the result of ``obeys_layout_contract`` in ``grad_layout_contract.h``."""
    if _order(variable) is None:
        return bool(gradient.is_contiguous())
    strides = zip(gradient.shape, gradient.stride(), variable.stride(), strict=True)
    return all(one == other if size != 1 else one != 0 for size, one, other in strides)


def _order(variable: torch.Tensor) -> Sequence[int] | None:
    """Return the axes by decreasing stride, or None if the elements are not dense."""
    order = sorted(range(variable.dim()), key=lambda axis: -variable.stride(axis))
    expected = 1
    for axis in reversed([axis for axis in order if variable.shape[axis] != 1]):
        if variable.stride(axis) != expected:
            return None
        expected *= variable.shape[axis]
    return order


def _copied(
    graph: fx.Graph, behind: fx.Node, node: fx.Node, order: Sequence[int] | None, fake_mode: Any
) -> fx.Node:
    """Insert a copy whose elements are stored in this order of axes, and return it."""
    order = range(node.meta["val"].dim()) if order is None else order
    contiguous = {"memory_format": torch.contiguous_format}
    back = sorted(range(len(order)), key=order.__getitem__)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (list(order),), {}),
        (aten.clone.default, (), contiguous),
        (aten.permute.default, (back,), {}),
    ]
    if list(order) == back == list(range(len(order))):
        calls = calls[1:2]
    for target, args, kwargs in calls:
        with graph.inserting_after(behind):
            made = graph.call_function(target, (node, *args), kwargs)
        with fake_mode:
            made.meta["val"] = target(node.meta["val"], *args, **kwargs)
        made.meta.update({key: node.meta[key] for key in OF_MODULES if key in node.meta})
        made.meta["partitioner_tag"] = "is_backward"
        node = behind = made
    return node
