"""Sizes of tensors, and operators whose results have sizes that depend on numbers."""

from __future__ import annotations

import math
from typing import NoReturn

from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule


@rule("sym_size")
def size(call: TorchCall) -> int:
    """Return the extent of an axis."""
    x: Value = call.value("self")
    return x.shape[call.axis()]


@rule("sym_numel")
def numel(call: TorchCall) -> int:
    """Return the number of elements."""
    return math.prod(call.value("self").shape)


@rule("_local_scalar_dense")
def item(call: TorchCall) -> NoReturn:
    """Refuse to read a number that only a step computes."""
    raise UnsupportedError(
        "a number that a step computes is not known before it; leave out item() and tolist(), and "
        "compute with the tensor"
    )


@rule("_unique2", "bincount", "nonzero", "unique_consecutive", "unique_dim")
def counted(call: TorchCall) -> NoReturn:
    """Refuse a result whose size depends on numbers that only a step computes."""
    raise UnsupportedError(
        "the size of its result depends on numbers that a step computes; use a mask with where, or "
        "make its operand a constant"
    )
