"""Conversion of torch tensors to NumPy arrays and to weights."""

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
"""Dtypes that torch cannot convert to NumPy: an integer dtype of equal width, and NumPy's dtype."""


def array_of(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor as an array, without a copy if possible."""
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
    """Return a weight for a tensor of a module; its elements are read lazily."""
    number = np.empty(0, RAW[tensor.dtype][1]).dtype if tensor.dtype in RAW else None
    dtype = number or np.dtype(str(tensor.dtype).removeprefix("torch."))
    return Weight(name, tuple(tensor.shape), dtype, partial(array_of, tensor))


def known_weight(tensor: torch.Tensor) -> Weight:
    """Return a weight for a tensor that is known at import time."""
    return known("", array_of(tensor))
