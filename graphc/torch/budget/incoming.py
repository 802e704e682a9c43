"""Gradients that enter the backward pass: the bytes that autograd uses for them.

The caller gives a gradient for each returned tensor that requires grad, and keeps it. A tangent of
the backward graph is such a gradient itself, or a tensor that autograd makes: a sum for tensors
that are returned twice or view one another, zeros, or a copy with the traced strides. Tensors that
autograd makes are freed after their last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.measure import bytes_alone, in_blocks
from graphc.torch.budget.returned import Returned
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
        for place, node in kept_for.items() if self.returned is not None else ():
            self._add_leaf(found, place, node, node in has_gradient)
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

    def _add_leaf(self, found: Incoming, place: int, leaf: fx.Node, has_gradient: bool) -> None:
        """Add the gradients of a leaf if the module returns the leaf or views of it."""
        assert self.returned is not None
        direct = self.returned.inputs.get(place, 0)
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
