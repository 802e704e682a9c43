"""Tensors of a model that is imported: type and shape are read at once, contents when needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.ir.builder import constant
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType, as_dtype
from graphc.ops.shape import broadcast_to, full

Array = np.ndarray[Any, np.dtype[Any]]

SEEN_ELEMENTS = 4096
"""Tensors with more elements are not checked for equal elements."""

MOST_NUMBERS = 2**27
"""Maximum number of elements that an import computes from few known numbers, to limit memory."""

MOST_TURNS = 10_000
"""Maximum number of iterations of a loop, scan or sequence that is unrolled."""


@dataclass(eq=False)
class Weight:
    """A tensor whose content is in the model, or known at import.

    `read` returns a new array each time, so that nothing large stays in memory. `is_filled` is True
    if all elements are equal and only one is stored. `is_external` is True if the content is in a
    separate file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array] = field(repr=False)
    is_filled: bool = False
    is_external: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> TensorType:
        """The tensor's type in graphc; raises `DTypeError` or `ShapeError` if there is none."""
        return TensorType(self.shape, as_dtype(self.dtype))

    @property
    def number(self) -> float | None:
        """The number that all elements equal; None if they differ or a check would take long."""
        if not self.elements or (not self.is_filled and self.elements > SEEN_ELEMENTS):
            return None
        flat = self.read().reshape(-1)[: 1 if self.is_filled else None]
        first = flat[0]
        if not self.is_filled and not (flat == first).all():
            return None
        return float(first) if flat.dtype.kind not in "iub" else int(first)

    def as_constant(self) -> Value:
        """Return the tensor as a value of a graph: one repeated number, or a constant array."""
        number = self.number
        if number is not None:
            return broadcast_to(full((), number, self.type.dtype), self.shape)
        return constant(self.read())


def known(name: str, array: Array) -> Weight:
    """Return a tensor whose content is `array`."""
    is_filled = array.size == 1 or (array.size > 1 and not any(array.strides))
    return Weight(name, array.shape, array.dtype, lambda: array, is_filled)


def filled(name: str, shape: tuple[int, ...], number: Any, dtype: np.dtype[Any]) -> Weight:
    """Return a tensor whose elements all equal `number`; only one is stored."""
    return known(name, np.broadcast_to(np.asarray(number, dtype), shape))


def empty(shape: Sequence[int], dtype: DType) -> Weight:
    """Return a tensor without elements, which cannot be a value of a graph."""
    return known("", np.empty(shape, dtype.numpy))
