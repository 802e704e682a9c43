"""Input and result of the checker: the graphs of a plan with the bytes of their nodes, and the live
ranges of a step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from graphc.torch.budget.check.returned import Returned


@dataclass(frozen=True)
class NodeBytes:
    """Workspace bytes of a node of the joint graph, and the bytes of each result."""

    workspace: int
    results: tuple[int, ...]


@dataclass(frozen=True)
class StepGraphs:
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
    node_bytes: Mapping[fx.Node, NodeBytes]
    copied_bytes: Mapping[Hashable, NodeBytes]
    """Bytes of copies that are not in the traced joint graph, by `kind_of_copy`."""
    fixed_bytes: int
    is_foreign: bool = False
    """True for graphs of another partitioner: faults are collected, and autograd may copy."""


def kind_of_copy(node: fx.Node) -> Hashable:
    """Return the type, device, shape and both strides of a copy, which determine its bytes."""
    (given,) = (each.meta["val"] for each in node.all_input_nodes)
    made = node.meta["val"]
    return made.dtype, str(made.device), tuple(made.shape), given.stride(), made.stride()


RANDOM_STATE = -1
"""The result index of a generator state."""


@dataclass(frozen=True)
class Moment:
    """A node that computes, and the live bytes then.

    `node` is None at the forward/backward boundary.
    """

    node: fx.Node | None
    original: fx.Node | None
    """The corresponding node of the traced joint graph; None for the boundary and for copies."""
    bytes: int
    made: int
    """Bytes of the storages that it produces."""
    workspace: int


@dataclass(frozen=True)
class Content:
    """The content of a storage from a moment until it is overwritten, and its uses.

    The moment is -1 for contents that exist before the step. `tensor` has their shape and type.
    """

    moment: int
    tensor: torch.Tensor
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """The live range of a storage, the moments `[first, last)`."""

    bytes: int
    first: int
    last: int
    result: int
    """Its index among the node's results, or `RANDOM_STATE`."""
    contents: tuple[Content, ...]
    is_held: bool
    """True if it is live at the end of the step, because the caller has it."""


@dataclass(frozen=True)
class Fault:
    """An error in a step's graphs: the node or another location of the error, and the problem."""

    node: str
    problem: str
    output: int | None = None
    """The index of the output of the joint graph that is wrong, or None."""


@dataclass(frozen=True)
class Replay:
    """Live ranges of a step; moments are the forward graph, the boundary, the backward graph."""

    moments: tuple[Moment, ...]
    lives: tuple[Life, ...]
    sources: tuple[tuple[Content, ...], ...]
    """Contents before the step, by source of the joint graph; empty for non-tensor sources."""
    boundary: int
    faults: tuple[Fault, ...] = ()
    """Errors in the graphs of another partitioner."""

    @cached_property
    def peak(self) -> Moment:
        """The first moment with the peak live bytes."""
        return max(self.moments, key=lambda moment: moment.bytes)
