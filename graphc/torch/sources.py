"""What the user calls the values that a joint graph is given: ``blocks.3.norm.weight``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from graphc.torch.joint import Joint, storage_key, tensors_of


def names_of_sources(joint: Joint, module: nn.Module, args: Sequence[Any]) -> dict[fx.Node, str]:
    """Names of parameters and buffers by their path, and of arguments by their number.

    The graph knows none of them; but the mode that traced it knows which of its tensors stands for
    each of the user's.
    """
    named = {storage_key(joint.fake_mode.from_tensor(t)): name for name, t in _named(module, args)}
    found: dict[fx.Node, str] = {}
    for source in joint.sources:
        for tensor in tensors_of(source):
            if storage_key(tensor) in named:
                found[source] = named[storage_key(tensor)]
    return found


def _named(module: nn.Module, args: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for number, each in enumerate(tree_leaves(list(args))):
        if isinstance(each, torch.Tensor):
            yield f"argument {number}", each
    yield from module.named_buffers()
    yield from module.named_parameters()
