"""Values of symbolic sizes: torch.export leaves sizes open that depend on numbers of constants.

The import knows these numbers, and binds the symbols when it computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphc.ir.graph import Value


class Symbols:
    """The symbols of an exported graph whose values are known."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def bind(self, example: Any, found: Any) -> None:
        """Record the symbols that `example`, torch's description of a result, has as sizes."""
        if isinstance(example, torch.SymInt) and isinstance(found, int):
            self._bind(example, found)
        elif isinstance(example, torch.Tensor) and isinstance(found, Value | torch.Tensor):
            for wanted, extent in zip(example.shape, found.shape, strict=False):
                self._bind(wanted, extent)
        elif isinstance(example, tuple | list) and isinstance(found, Sequence):
            for one, other in zip(example, found, strict=False):
                self.bind(one, other)

    def _bind(self, wanted: int | torch.SymInt, number: int) -> None:
        if isinstance(wanted, torch.SymInt) and wanted.node.expr.is_Symbol:
            self._known.setdefault(wanted.node.expr, number)

    def concrete(self, example: Any) -> Any:
        """Return a description with known sizes; others stay open."""
        if isinstance(example, tuple | list):
            return type(example)(map(self.concrete, example))
        if isinstance(example, torch.SymInt):
            return self._number(example)
        if not isinstance(example, torch.Tensor) or not _is_open(example):
            return example
        shape = [self._number(extent) for extent in example.shape]
        if not all(isinstance(extent, int) for extent in shape):
            return example
        return torch.empty(shape, dtype=example.dtype, device="meta")

    def _number(self, extent: int | torch.SymInt) -> int | torch.SymInt:
        if isinstance(extent, int) or not extent.node.expr.free_symbols <= self._known.keys():
            return extent
        return int(extent.node.expr.subs(self._known))


def _is_open(tensor: torch.Tensor) -> bool:
    return any(isinstance(extent, torch.SymInt) for extent in tensor.shape)


def elements_of(example: torch.Tensor) -> int:
    """Return the number of elements of a description; 0 if a size is open."""
    return 0 if _is_open(example) else example.numel()
