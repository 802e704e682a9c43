"""Descriptions of calls, by which a call is compared with a planned one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graphc.errors import TorchError
from graphc.torch.budget.example import PLAIN, Given
from graphc.torch.budget.names import arguments_of
from graphc.torch.budget.sizes.options import Size, shown

Described = dict[str, object]
"""The properties of a call that its plan depends on, by the names of its arguments."""


class UnplannedError(TorchError):
    """No planned size holds the arguments of a call."""


def description(given: Given) -> Described:
    """Return the properties of a call that its plan depends on."""
    return {name: _described(each) for name, each in arguments_of(given)}


def _described(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):
        stride = tuple(s if n > 1 else 0 for s, n in zip(leaf.stride(), leaf.shape, strict=True))
        gradient = " with a gradient" if leaf.requires_grad else ""
        return (
            f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)} on {leaf.device}, "
            f"strides {list(stride)}{gradient}"
        )
    if isinstance(leaf, np.ndarray):
        return f"an array of {leaf.dtype} {list(leaf.shape)}"
    return leaf if isinstance(leaf, PLAIN) else type(leaf).__qualname__


def refuse_other(planned: Described, found: Described, size: Size) -> None:
    """Raise `UnplannedError` if a call differs from the planned one of its size."""
    if planned == found:
        return
    name = next(
        name
        for name in (*planned, *found)
        if planned.get(name, planned) != found.get(name, planned)
    )
    told = [str(each[name]) if name in each else "missing" for each in (found, planned)]
    raise UnplannedError(
        f"{name} is {told[0]} in this call, but {told[1]} in the plan for {shown(size)}; only the "
        "planned dimensions may vary. Pass it as planned, or unplanned='plan' to plan such calls "
        "when they occur"
    )
