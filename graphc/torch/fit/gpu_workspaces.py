"""Bytes that ops allocate on a GPU beside their results, by formula: copies of operands."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


def workspace_bytes(function: Any, args: Any) -> int:
    """Return the workspace of an op on a GPU in bytes; 0 without a formula.

    BLAS reads matrices with a stride of one, so products copy others, such as the expanded gradient
    of a sum.
    """
    if function not in PRODUCTS:
        return 0
    return sum(each.numel() * each.element_size() for each in args[-2:] if not _is_readable(each))


def _is_readable(matrix: torch.Tensor) -> bool:
    """Return True if BLAS reads a matrix, or each of a batch, by its strides."""
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride()[-2:]
    return bool((down == 1 and right >= max(1, rows)) or (right == 1 and down >= max(1, columns)))
