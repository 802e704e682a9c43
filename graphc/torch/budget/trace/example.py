"""Weak references to the arguments of the last plan."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from graphc.errors import OptionError
from graphc.torch.budget.options import Given

PLAIN = (
    Number,
    np.generic,
    str,
    bytes,
    range,
    enum.Enum,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(None),
    type(...),
)
"""Types that contain no tensors and are stored directly."""


def gone() -> Given:
    """Raise `OptionError`, because the arguments no longer exist."""
    raise OptionError("the arguments used for planning no longer exist; pass arguments to verify()")


def weakly(given: Given) -> Callable[[], Given]:
    """Return a function that returns the arguments while they are alive, and then calls `gone`."""
    leaves, structure = tree_flatten(given)
    kept = [each if isinstance(each, PLAIN) else _reference(each) for each in leaves]

    def again() -> Given:
        found = [each() if isinstance(each, weakref.ref) else each for each in kept]
        lost = (now is None and each is not None for now, each in zip(found, kept, strict=True))
        return gone() if any(lost) else tree_unflatten(found, structure)

    return again


def results_in(given: Given) -> list[torch.Tensor]:
    """Return the arguments that autograd computed from other tensors (non-leaf tensors)."""
    return [x for x in tree_leaves(given) if isinstance(x, torch.Tensor) and not x.is_leaf]


def _reference(argument: Any) -> weakref.ref[Any]:
    """Return a weak reference, which is dead if the object does not support weak references."""
    try:
        return weakref.ref(argument)
    except TypeError:
        return weakref.ref(set[Any]())
