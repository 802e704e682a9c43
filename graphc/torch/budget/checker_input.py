"""Input of the checker: the graphs of a plan and the bytes of their nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from torch import fx

from graphc.torch.budget.returned import Returned


@dataclass(frozen=True)
class Weight:
    """Workspace bytes of a node of the joint graph, and the bytes of each result."""

    workspace: int
    results: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Input of the checker: a joint graph, and the forward and backward graph emitted for it.

    The first `forward_outputs` outputs of the joint graph belong to the forward pass. `leaves` are
    indices of the inputs whose gradients autograd keeps. `returned` says how often the module
    returns a tensor. `fixed_bytes` are resident before the
    step.
    """

    joint: fx.Graph
    forward_outputs: int
    forward: fx.Graph
    backward: fx.Graph
    leaves: frozenset[int]
    returned: Returned | None
    weights: Mapping[fx.Node, Weight]
    copies: Mapping[Hashable, Weight]
    """Weights of copies that are not in the traced joint graph, by `kind_of_copy`."""
    fixed_bytes: int
    is_foreign: bool = False
    """True for graphs of another partitioner: faults are collected, and autograd may copy."""


def kind_of_copy(node: fx.Node) -> Hashable:
    """Return the type, device, shape and both strides of a copy, which determine its bytes."""
    (given,) = (each.meta["val"] for each in node.all_input_nodes)
    made = node.meta["val"]
    return made.dtype, str(made.device), tuple(made.shape), given.stride(), made.stride()
