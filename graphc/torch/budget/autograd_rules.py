"""Model of autograd's memory use between and after the graphs of a step, for the checker.

It uses the joint graph as torch traced it, and shares no code with the planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.contents import in_blocks


@dataclass(frozen=True)
class OfViews:
    """Bytes that autograd uses between the graphs for outputs that are views of others."""

    kept: int
    """Gradients that are live until the end of the step, in addition to their sum."""
    padded: int
    """One of these gradients, temporarily padded to the shape of its base."""


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


def gradients_of_views(joint: fx.Graph, forward_outputs: int) -> OfViews:
    """Return the bytes for gradients of outputs that share a storage.

    Autograd adds the gradients of such outputs to that of the output with a tangent in the graph.
    """
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
    """Map output indices of the backward graph to the `leaves` whose gradients they are.

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
    """Return the reason why autograd would copy a gradient outside the plan, or None.

    Autograd keeps a tensor without other owners if it has the strides of a dense variable, or is
    contiguous if the variable is not dense.
    """
    node = returned[place]
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


def _bytes(fake: torch.Tensor) -> int:
    """Return the bytes of a tensor in a storage of its own."""
    return in_blocks(fake.numel() * fake.element_size(), fake.device)


def _is_users(what: Any) -> bool:
    """Return whether the module itself returns an output, rather than torch adding it."""
    return type(what).__name__ == "PlainAOTOutput"


def _output(graph: fx.Graph) -> fx.Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")


def _described_outputs(graph: fx.Graph) -> list[tuple[Any, Any]]:
    """Return torch's description of each output, with its node."""
    output = _output(graph)
    returned = tuple(output.args[0])
    return list(zip(output.meta.get("desc", (None,) * len(returned)), returned, strict=True))
