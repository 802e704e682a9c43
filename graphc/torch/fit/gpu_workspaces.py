"""Bytes that products allocate on a GPU beside their results, by formula.

Libraries keep workspaces: cuBLAS one for each thread that computes products, and cuBLASLt one for
products with a bias. Copies of operands are freed after the product.
"""

from __future__ import annotations

from typing import Any

import torch

from graphc.devices.device import Device
from graphc.torch.fit.allocator import MIB, cublas_bytes

aten = torch.ops.aten

PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}

CUBLAS, CUBLASLT = "cuBLAS", "cuBLASLt"


def kept_bytes(function: Any, device: Device) -> dict[str, int]:
    """Return the workspace that each library keeps from the first call of an op on, in bytes.

    That of cuBLASLt is torch's default of 1 MiB (``CUBLASLT_WORKSPACE_SIZE``). Versions of torch
    before these defaults, for which a device has the architecture 0, keep nothing.
    """
    if function not in PRODUCTS or device.architecture == 0:
        return {}
    kept = {CUBLAS: cublas_bytes(device)}
    return {**kept, CUBLASLT: MIB} if function is aten.addmm.default else kept


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
