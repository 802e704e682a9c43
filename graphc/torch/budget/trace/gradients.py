"""Gradients of parameters that autograd would copy, made inside of the joint graph.

A gradient of a parameter becomes its ``.grad`` if the tensor has no other owner and has the strides
of the parameter. Otherwise autograd copies it after the backward graph returns
(``torch/csrc/autograd/functions/accumulate_grad.h``). `copy_shared_gradients` makes these copies
inside the joint graph, so that plans count them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import fx

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
