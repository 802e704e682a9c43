"""Sizes of the parameters of a module, for formulas of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import nn


@dataclass(frozen=True)
class Parameter:
    """The size of a parameter.

    `is_matrix` is true for 2-D weights of hidden layers, but not for embeddings and output layers.
    """

    shape: tuple[int, ...]
    element_bytes: int = 4
    is_trainable: bool = True
    is_matrix: bool = False

    @property
    def count(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of all elements."""
        return self.count * self.element_bytes


def parameters_of(module: nn.Module) -> list[Parameter]:
    """Return the size of each parameter of a module, once for those that several modules share."""
    return [each for group in groups_of(module) for each in group]


def groups_of(module: nn.Module) -> list[list[Parameter]]:
    """Return parameters in the groups of FSDP: those outside blocks first, then each block's."""
    matrices = _hidden_matrices(module)
    seen: set[int] = set()
    groups: list[list[Parameter]] = []
    for part in (*blocks_of(module), module):
        fresh = [each for each in part.parameters() if id(each) not in seen]
        seen.update(map(id, fresh))
        groups.append(
            [
                Parameter(tuple(p.shape), p.element_size(), p.requires_grad, id(p) in matrices)
                for p in fresh
            ]
        )
    return [groups[-1], *groups[:-1]]


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a module: the items of its outermost lists of one class.

    A list is an `nn.ModuleList` or `nn.Sequential` of at least two modules with parameters.
    """
    found: list[nn.Module] = []

    def visit(part: nn.Module) -> None:
        items = [each for each in part.children() if any(True for _ in each.parameters())]
        is_list = isinstance(part, nn.ModuleList | nn.Sequential)
        if is_list and len(items) > 1 and len({type(each) for each in items}) == 1:
            found.extend(items)
            return
        for each in items:
            visit(each)

    visit(module)
    return found


def output_layer(module: nn.Module) -> nn.Module | None:
    """Return the output embeddings of a transformers model; None for other modules."""
    find = getattr(module, "get_output_embeddings", None)
    found: nn.Module | None = find() if callable(find) else None
    return found


def _hidden_matrices(module: nn.Module) -> set[int]:
    outer: Sequence[nn.Module | None] = [
        output_layer(module),
        *(each for each in module.modules() if isinstance(each, nn.Embedding)),
    ]
    excluded = {id(p) for each in outer if each is not None for p in each.parameters()}
    return {id(p) for p in module.parameters() if p.ndim == 2} - excluded
