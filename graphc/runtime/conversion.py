"""Exact conversion of arrays to other dtypes, and of tensors of other libraries to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.ir.types import bfloat16

Array = np.ndarray[Any, np.dtype[Any]]


def as_numpy(tensor: Any) -> Array:
    """Return an object with ``__array__``, such as a torch tensor, as an array.

    A tensor on a GPU is copied to the host. If that is impossible, the exception of the tensor's
    library is raised.
    """
    if callable(getattr(tensor, "detach", None)):  # of torch, perhaps with a gradient
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # which torch cannot pass to NumPy
            tensor = tensor.float()
    return np.asarray(tensor)


def is_real(dtype: np.dtype[Any]) -> bool:
    """Return True for bools, integers and floats."""
    return dtype.kind in "biuf" or dtype == bfloat16.numpy


def converted(given: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Convert real numbers to a dtype; also return a mask of the elements that this changes."""
    with np.errstate(all="ignore"):
        found = given.astype(dtype)
        changed = found.astype(given.dtype) != given
        changed &= ~((given != given) & (found != found))  # NaN stays NaN
        # A cast of a float above all integers is undefined, and may even return to that float.
        for floats, integers in ((given, dtype), (found, given.dtype)):
            if integers.kind in "iu" and floats.dtype.kind not in "biu":
                changed |= floats >= float(np.iinfo(integers).max) + 1.0
    return found, np.asarray(changed)
