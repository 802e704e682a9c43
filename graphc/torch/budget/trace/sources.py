"""Sources of a joint graph: the kind of each input tensor, and its name in the user's program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from graphc.torch.budget.check.returned import is_tangent
from graphc.torch.budget.trace.joint import Joint, storage_key, tensors_of
from graphc.torch.budget.trace.measure import allocated_bytes
from graphc.torch.budget.trace.names import Kind, arguments_of, expression_of_user, named

FROM_NUMPY = "___from_numpy("
"""Prefix of Dynamo's names for tensors converted from NumPy arrays."""


@dataclass(frozen=True)
class Source:
    """A tensor resident before the step.

    The kind `constant` covers all tensors of no other kind: attributes of a module that are no
    buffers, tensors of the program, and literals. `is_counted` is true if the module or the
    arguments already count the tensor.
    """

    name: str
    kind: Kind
    storage: int
    """The key of the storage, which several sources may share."""
    bytes: int
    is_counted: bool


def source_names(module: fx.GraphModule) -> list[str]:
    """Return Dynamo's names for the inputs of a traced graph, such as ``L['self'].module.cos``."""
    found = []
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        name = getattr(source, "name", node.name)
        found.append(str(name() if callable(name) else name))
    return found


def sources_of(
    joint: Joint, step: nn.Module, given: Any, names: Sequence[str]
) -> dict[fx.Node, Source]:
    """Return the description of each source of the graph that is a tensor.

    The fake mode of the trace maps the user's tensors to tensors of the graph. All other sources
    get their names from Dynamo's `names`.
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
    """Return the name and kind of a source that is not a parameter, buffer or given tensor."""
    index = getattr(node.meta.get("desc"), "idx", None)
    if index is None or index >= len(names):
        return str(node.target), "constant"
    name = names[index]
    is_given = "L['args']" in name or "L['kwargs']" in name
    if name.startswith(FROM_NUMPY):
        name = name.removeprefix(FROM_NUMPY).removesuffix(")")
    return expression_of_user(name), "input" if is_given else "constant"
