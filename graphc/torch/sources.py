"""What the values are that a joint graph is given, and what the user calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from graphc.torch.joint import Joint, is_tangent, storage_key, tensors_of
from graphc.torch.measure import allocated_bytes
from graphc.torch.names import Kind, arguments_of, expression_of_user, named

FROM_NUMPY = "___from_numpy("
"""Begins what Dynamo calls a tensor that it makes of an array."""


@dataclass(frozen=True)
class Source:
    """A tensor that is there before the step; a constant is none of the other kinds.

    It is an attribute of a module that is no buffer, a tensor of the program, or one that the
    program writes out. `is_counted` says that the module or the arguments have it as their own.
    """

    name: str
    kind: Kind
    storage: int
    """What tells storages apart; several sources may lie in one."""
    bytes: int
    is_counted: bool


def source_names(module: fx.GraphModule) -> list[str]:
    """What Dynamo calls the inputs of a graph that it has traced: ``L['self'].module.cos``."""
    found = []
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        name = getattr(source, "name", node.name)
        found.append(str(name() if callable(name) else name))
    return found


def sources_of(
    joint: Joint, step: nn.Module, given: Any, names: Sequence[str]
) -> dict[fx.Node, Source]:
    """What each source of the graph is that holds a tensor.

    The graph knows none of them; but the mode that traced it knows which of its tensors stands for
    each of the user's. The rest have Dynamo's `names`.
    """
    known: dict[int, tuple[str, Kind]] = {}
    for kind, name, each in named(step, given):
        if isinstance(each, torch.Tensor):
            known.setdefault(storage_key(joint.fake_mode.from_tensor(each)), (name, kind))
    arrays = {name for name, each in arguments_of(given) if isinstance(each, np.ndarray)}
    found: dict[fx.Node, Source] = {}
    for node in joint.sources:
        tensors = () if is_tangent(node) else tensors_of(node)
        for tensor in tensors:
            storage, size = storage_key(tensor), allocated_bytes(tensor)
            is_known = storage in known
            name, kind = known[storage] if is_known else _other(node, names)
            is_counted = is_known or name in arrays
            found[node] = Source(name, kind, storage, size, is_counted)
    return found


def _other(node: fx.Node, names: Sequence[str]) -> tuple[str, Kind]:
    """Name and kind of what is no parameter, no buffer and no tensor that is given."""
    place = getattr(node.meta.get("desc"), "idx", None)
    if place is None or place >= len(names):
        return str(node.target), "constant"
    told = names[place]
    is_given = "L['args']" in told or "L['kwargs']" in told
    if told.startswith(FROM_NUMPY):
        told = told.removeprefix(FROM_NUMPY).removesuffix(")")
    return expression_of_user(told), "input" if is_given else "constant"
