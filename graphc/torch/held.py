"""What is there before a step of torch: parameters, buffers, inputs, what an optimizer keeps."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from graphc.errors import OptionError
from graphc.ir.types import parse_bytes


@dataclass(frozen=True)
class Held:
    """Bytes of each kind; storages that are shared count once, where they come first."""

    parameters: int
    buffers: int
    inputs: int
    gradients: int
    reserve: int

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.parameters + self.buffers + self.inputs + self.gradients + self.reserve


def held_by(module: nn.Module, given: Any, reserve: int, accumulate: bool) -> Held:
    """What a module and the arguments of a call hold; with `accumulate` also old gradients."""
    seen: set[int] = set()
    parameters = list(module.parameters())
    learned = [each for each in parameters if each.requires_grad]
    inputs = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
    return Held(
        parameters=_storage_bytes(parameters, seen),
        buffers=_storage_bytes(module.buffers(), seen),
        inputs=_storage_bytes(inputs, seen),
        gradients=sum(each.nbytes for each in learned) if accumulate else 0,
        reserve=reserve,
    )


def _storage_bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += int(storage.nbytes())
    return total


def reserve_bytes(reserve: torch.optim.Optimizer | int | str | None) -> int:
    """Bytes that an optimizer's state takes, or that are given; raises `OptionError`."""
    if reserve is None:
        return 0
    if isinstance(reserve, torch.optim.Optimizer):
        return max(_there(reserve), _rehearsed(reserve))
    try:
        return parse_bytes("reserve", reserve)
    except OptionError:
        raise OptionError(
            f"reserve is an optimizer, or a size such as 2GiB, got {type(reserve).__name__}"
        ) from None


def _there(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state that an optimizer has already."""
    leaves = tree_leaves([dict(state) for state in optimizer.state.values()])
    return _storage_bytes((each for each in leaves if isinstance(each, torch.Tensor)), set())


def _rehearsed(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state that a step makes, on parameters like the optimizer's."""
    try:
        return _kept_after_a_step(optimizer, optimizer.param_groups, torch.device("meta"))
    except Exception:
        pass  # some look at numbers
    try:
        return sum(
            _kept_after_a_step(optimizer, [{**group, "params": [each]}], torch.device("cpu"))
            for group in optimizer.param_groups
            for each in group["params"]
        )
    except Exception as error:
        if optimizer.state:
            return 0  # what is there counts
        raise OptionError(
            f"what {type(optimizer).__name__} will keep cannot be told before its first step "
            f"({error}); give reserve as a size, or after a step"
        ) from None


def _kept_after_a_step(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], device: torch.device
) -> int:
    """Bytes of the state after a step that changes copies, of gradients that are 1."""
    copied = []
    for group in groups:
        like = [torch.ones_like(each, device=device) for each in group["params"]]
        for each in like:
            each.grad = torch.ones_like(each)
        copied.append({**group, "params": like})
    rehearsal = copy.copy(optimizer)
    rehearsal.__dict__.update(param_groups=copied, state=type(optimizer.state)(dict))
    rehearsal.step()
    return _there(rehearsal)
