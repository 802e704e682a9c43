"""Tensors without elements, which values of graphc cannot be: they are known at import time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphc.torch.importing.calls import operator_of

WRITES = frozenset((
    "_unsafe_index_put", "diagonal_scatter", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "scatter", "scatter_add", "scatter_reduce", "slice_scatter",
))  # fmt: skip
"""Operators that return their first operand if a later one has no elements."""


def is_empty(given: object) -> bool:
    """Return whether an operand, or the description of a result, has no elements."""
    return isinstance(given, torch.Tensor) and any(
        isinstance(extent, int) and extent == 0 for extent in given.shape
    )


def without_elements(node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a node that has none with elements, or that writes none; else None."""
    example = node.meta.get("val")
    listed = list(example) if isinstance(example, tuple | list) else [example]
    if listed and all(is_empty(each) for each in listed):
        found = [empty_like(each) for each in listed]
        return found if isinstance(example, tuple | list) else found[0]
    is_write = operator_of(node.target) in WRITES
    if is_write and any(is_empty(leaf) for leaf in pytree.tree_leaves((args[1:], kwargs))):
        return args[0]
    return None


def empty_like(example: torch.Tensor) -> torch.Tensor:
    """Return a tensor without elements of the shape and dtype of a description."""
    return torch.empty(tuple(example.shape), dtype=example.dtype)
