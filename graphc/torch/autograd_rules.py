"""What autograd does with gradients between and behind the graphs of a step, for the checker.

It knows the joint graph as torch has traced it, and shares no code with what makes plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graphc.torch.contents import in_blocks


@dataclass(frozen=True)
class OfViews:
    """Bytes that autograd takes for outputs that are views of others, between the graphs."""

    kept: int
    """Gradients that are there to the end of the step, beside their sum."""
    padded: int
    """One of them, for a moment in the shape of what it is a view of."""


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    """What a graph is given."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def returned_by(graph: fx.Graph) -> tuple[Any, ...]:
    """What a graph returns."""
    return tuple(_output(graph).args[0])


def is_tangent(node: fx.Node) -> bool:
    """Whether an input of a joint graph is a gradient that comes in."""
    described = type(node.meta.get("desc")).__name__
    return described == "TangentAOTInput" or str(node.target).startswith("tangents_")


def gradients_of_views(joint: fx.Graph, forward_outputs: int) -> OfViews:
    """Outputs in one storage with one that has a gradient in the graph have theirs added to it."""
    given = {getattr(n.meta.get("desc"), "output", None) for n in placeholders(joint)} - {None}
    by_storage: dict[int, list[tuple[Any, torch.Tensor, bool]]] = defaultdict(list)
    for what, node in _described_outputs(joint)[:forward_outputs]:
        fake = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(fake, torch.Tensor):
            is_learned = fake.is_floating_point() and "detach" not in str(node.target)
            by_storage[fake.untyped_storage()._cdata].append((what, fake, is_learned))
    kept = padded = 0
    for outputs in by_storage.values():
        others = [
            _bytes(fake)
            for what, fake, is_learned in outputs
            if _is_users(what) and what not in given and is_learned
        ]
        for what, fake, _ in outputs:
            if what in given and others:
                kept += sum(others) + (_bytes(fake) if _is_users(what) else 0)
                padded = max(padded, _bytes(fake))
    return OfViews(kept, padded)


def kept_gradients(
    joint: fx.Graph, forward_outputs: int, leaves: Collection[int]
) -> dict[int, fx.Node]:
    """The inputs at the places `leaves` by those that their gradients have in the backward graph.

    Autograd keeps these gradients as they are returned, or copies them.
    """
    inputs = {
        node.meta["desc"]: node
        for place, node in enumerate(placeholders(joint))
        if place in leaves and "desc" in node.meta
    }
    outputs = enumerate(_described_outputs(joint)[forward_outputs:])
    of = {place: getattr(what, "grad_of", None) for place, (what, node) in outputs if node}
    return {place: inputs[what] for place, what in of.items() if what in inputs}


def why_copied(returned: Sequence[fx.Node | None], place: int, variable: fx.Node) -> str | None:
    """Why autograd copies a gradient to keep it, of which no plan would know; None if it does not.

    It keeps a tensor that nobody else has, with the strides of the variable where that is dense.
    """
    node = returned[place]
    assert node is not None
    if node.op != "call_function":
        return f"what the graph was given is returned as the gradient of {variable.name}"
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
    """Whether the elements lie side by side, none twice, in some order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _bytes(fake: torch.Tensor) -> int:
    """Bytes of a tensor that lies alone."""
    return in_blocks(fake.numel() * fake.element_size(), fake.device)


def _is_users(what: Any) -> bool:
    """Whether an output is one that the module returns, and not one that torch has added."""
    return type(what).__name__ == "PlainAOTOutput"


def _output(graph: fx.Graph) -> fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _described_outputs(graph: fx.Graph) -> list[tuple[Any, Any]]:
    """What each output is, as torch says, and its node."""
    output = _output(graph)
    returned = tuple(output.args[0])
    return list(zip(output.meta.get("desc", (None,) * len(returned)), returned, strict=True))
