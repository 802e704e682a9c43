"""Memory resident before a torch step: parameters, buffers, inputs and optimizer state."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from graphc.byte_sizes import parse_bytes
from graphc.errors import OptionError
from graphc.torch.budget.trace.measure import in_blocks, storage_bytes
from graphc.torch.budget.trace.sources import Source


@dataclass(frozen=True)
class Held:
    """Resident bytes by kind; a shared storage counts once, in the first kind that has it.

    `constants` are all other tensors: plain attributes of modules, tensors of the program, and
    literals in its code. `library_workspaces` are those that cuBLAS keeps on a GPU. `unpadded` are
    arguments before they are padded to a planned size, which the caller holds beside `inputs`.
    """

    parameters: int
    buffers: int
    inputs: int
    gradients: int
    reserve: int
    constants: int
    library_workspaces: int = 0
    unpadded: int = 0

    @property
    def bytes(self) -> int:
        """The sum over all kinds."""
        return sum(astuple(self))


def held_by(
    step: nn.Module,
    given: Any,
    sources: Iterable[Source],
    reserve: int,
    accumulate: bool,
    library_workspaces: int = 0,
) -> Held:
    """Return the resident bytes of a step, of a call's arguments, and of other graph sources.

    With `accumulate`, include the gradients of earlier steps.
    """
    seen: set[int] = set()
    leaves = tree_leaves(given)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    others = {source.storage: source for source in sources if not source.is_counted}
    array_bytes = sum(each.nbytes for each in arrays_in(leaves))
    size: Counter[str] = Counter()
    for source in others.values():
        size[source.kind] += source.bytes
    return Held(
        parameters=storage_bytes(step.parameters(), seen),
        buffers=storage_bytes(step.buffers(), seen),
        inputs=storage_bytes(tensors, seen) + array_bytes + size["input"],
        gradients=_gradient_bytes([*step.parameters(), *tensors]) if accumulate else 0,
        reserve=reserve,
        constants=size["constant"],
        library_workspaces=library_workspaces,
    )


def arrays_in(leaves: Iterable[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the distinct NumPy arrays among the leaves, with views replaced by their base."""
    owners: dict[int, np.ndarray[Any, Any]] = {}
    for each in leaves:
        if isinstance(each, np.ndarray):
            while isinstance(each.base, np.ndarray):
                each = each.base
            owners[id(each)] = each
    return list(owners.values())


def _gradient_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of ``.grad`` for the distinct leaves that require gradients."""
    learned = {id(each): each for each in tensors if each.requires_grad and each.is_leaf}
    return sum(in_blocks(each.nbytes, each.device) for each in learned.values())


def reserve_bytes(reserve: torch.optim.Optimizer | int | str | None) -> int:
    """Return the bytes of an optimizer's state, or the given size; raises `OptionError`."""
    if reserve is None:
        return 0
    if isinstance(reserve, torch.optim.Optimizer):
        # accelerate and Lightning wrap optimizers
        inner = getattr(reserve, "optimizer", getattr(reserve, "_optimizer", reserve))
        return max(_there(inner), _rehearsed(inner))
    try:
        return parse_bytes("reserve", reserve)
    except OptionError:
        raise OptionError(
            f"reserve must be an optimizer, or a size such as 2GiB, got {type(reserve).__name__}"
        ) from None


def _there(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's existing state."""
    leaves = tree_leaves([dict(state) for state in optimizer.state.values()])
    return storage_bytes(each for each in leaves if isinstance(each, torch.Tensor))


def _rehearsed(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the state after a trial step on copies of the parameters.

    Tries all parameters on the meta device first, then each parameter alone on the CPU.
    """
    try:
        return _kept_after_a_step(optimizer, optimizer.param_groups, torch.device("meta"))
    except Exception:
        pass  # some optimizers read values, which meta tensors lack
    try:
        return sum(
            _kept_after_a_step(optimizer, [{**group, "params": [each]}], torch.device("cpu"))
            for group in optimizer.param_groups
            for each in group["params"]
        )
    except Exception as error:
        if optimizer.state:
            return 0  # `_there` counts the existing state
        raise OptionError(
            f"the state size of {type(optimizer).__name__} is unknown before its first step "
            f"({error}); pass reserve as a size, or plan after a step"
        ) from None


def _kept_after_a_step(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], device: torch.device
) -> int:
    """Return the bytes of the state after a step on copies of the parameters.

    All gradients are 1. Frozen parameters have no gradient, so the step skips them.
    """
    copied = []
    for group in groups:
        like = [torch.ones_like(each, device=device) for each in group["params"]]
        for copy_of_it, each in zip(like, group["params"], strict=True):
            copy_of_it.grad = torch.ones_like(copy_of_it) if each.requires_grad else None
        copied.append({**group, "params": like})
    rehearsal = copy.copy(optimizer)
    rehearsal.__dict__.update(param_groups=copied, state=type(optimizer.state)(dict))
    rehearsal.step()
    return _there(rehearsal)
