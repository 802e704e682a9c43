"""What a row says of an op, and what the references of several families share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.ir.builder import apply


@dataclass(frozen=True)
class Sample:
    op: str
    build: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    reference: Callable[..., Any]
    reads: dict[str, set[str]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    domain: tuple[float, float] = (-2.0, 2.0)
    int_limit: int = 3
    second_order: bool = True
    joint: bool = False
    """Whether one node gives all gradients, and so reads what any of them needs."""
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.op}{self.label}"

    def dtype(self, index: int) -> str:
        return self.dtypes[index] if self.dtypes else "float64"


def direct(op_class, attributes=None):
    """Build a node of an op that has no function of its own."""

    def build(*inputs):
        outputs = apply(op_class, *inputs, attributes=attributes).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    return build


def linear_transpose(function, shape, dy):
    """The transpose of a linear map, from its action on unit vectors."""
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.array([np.sum(function(unit) * dy) for unit in units]).reshape(shape)


def windows(x, size, stride, padding, dilation=(1, 1), fill=0.0):
    """All windows of x: (n, c, rows, columns, *size)."""
    spread = [(0, 0), (0, 0), (padding[0], padding[-2]), (padding[1], padding[-1])]
    wide = np.pad(x, spread, constant_values=fill)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(wide, reach, (2, 3))
    return found[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


M, N = (3, 4), (4,)


BOTH = {"dy", "a", "b"}
