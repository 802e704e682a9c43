"""Tensors of torch as arrays and as weights."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import torch

from graphc.errors import TorchError
from graphc.importing.weights import Array, Weight, known

RAW = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
}
"""Dtypes that NumPy has no array of in torch: integers of as many bits, and graphc's dtype."""


def array_of(tensor: torch.Tensor) -> Array:
    """The numbers of a tensor, of its own bytes where that can be."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in RAW:
        integers, dtype = RAW[tensor.dtype]
        raw: Array = tensor.contiguous().view(integers).numpy()
        return raw.view(dtype)
    try:
        found: Array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise TorchError(f"a tensor of {tensor.dtype} cannot be read: {error}") from None
    return found


def weight_of(name: str, tensor: torch.Tensor) -> Weight:
    """A tensor of a module; its numbers are read when they are asked for."""
    number = np.empty(0, RAW[tensor.dtype][1]).dtype if tensor.dtype in RAW else None
    dtype = number or np.dtype(str(tensor.dtype).removeprefix("torch."))
    return Weight(name, tuple(tensor.shape), dtype, partial(array_of, tensor))


def known_weight(tensor: torch.Tensor) -> Weight:
    """A tensor that is known while a network is read."""
    return known("", array_of(tensor))
