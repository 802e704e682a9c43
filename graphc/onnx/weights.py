"""Tensors of an ONNX file: type and shape at once, numbers when they are asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from graphc.errors import OnnxError, quoted

Array = np.ndarray[Any, np.dtype[Any]]

SEEN_ELEMENTS = 4096
"""Tensors of no more elements are looked through for being one number."""


@dataclass(eq=False)
class Weight:
    """A tensor whose numbers are in the file, or known while it is read.

    `read` gives them anew each time, so that nothing large stays in memory; `is_filled` says that
    all are one number, which takes none. `is_external` says that they lie in a file of their own.
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
    def number(self) -> float | None:
        """The one number that all elements are, where that is quickly seen; else None."""
        if not self.elements or (not self.is_filled and self.elements > SEEN_ELEMENTS):
            return None
        flat = self.read().reshape(-1)[: 1 if self.is_filled else None]
        first = flat[0]
        if not self.is_filled and not (flat == first).all():
            return None
        return float(first) if flat.dtype.kind not in "iub" else int(first)


def known(name: str, array: Array) -> Weight:
    """A tensor that is there."""
    is_filled = array.size == 1 or (array.size > 1 and not any(array.strides))
    return Weight(name, array.shape, array.dtype, lambda: array, is_filled)


def filled(name: str, shape: tuple[int, ...], number: Any, dtype: np.dtype[Any]) -> Weight:
    """A tensor of one number."""
    return known(name, np.broadcast_to(np.asarray(number, dtype), shape))


def stored(tensor: onnx.TensorProto, folder: str) -> Weight:
    """A tensor of a file; `folder` is where its external data lies.

    Raises `OnnxError` for element types that NumPy has no numbers for, and for negative extents.
    """
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise OnnxError(
            f"tensor {tensor.name!r} has the element type {tensor.data_type}, which there is not"
        ) from None
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise OnnxError(f"tensor {tensor.name!r} has the shape {quoted(list(shape))}")
    return Weight(
        tensor.name,
        shape,
        np.dtype(dtype),
        lambda: _numbers(tensor, folder),
        is_external=external_data_helper.uses_external_data(tensor),
    )


def _numbers(tensor: onnx.TensorProto, folder: str) -> Array:
    """The array of a tensor; raises `OnnxError` where the file does not hold it."""
    if external_data_helper.uses_external_data(tensor):
        return _external(tensor, folder)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"tensor {tensor.name!r} cannot be read: {error}") from None


def _external(tensor: onnx.TensorProto, folder: str) -> Array:
    """Numbers of a file beside the model's, mapped and not copied."""
    try:
        entry = external_data_helper.ExternalDataInfo(tensor)
        path = _beside(folder, entry.location)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        count = math.prod(tensor.dims)
        offset = int(entry.offset or 0)
        length = int(entry.length or 0)
        if dtype.itemsize * count not in (length, 0) and length:
            raise ValueError(f"{length} bytes are no {count} numbers of {dtype}")
        if not count:
            return np.empty(tuple(tensor.dims), dtype)
        mapped = np.memmap(path, dtype.newbyteorder("<"), "r", offset, (count,))
        return np.asarray(mapped).reshape(tuple(tensor.dims)).astype(dtype, copy=False)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"the external data of {tensor.name!r} cannot be read: {error}") from None


def _beside(folder: str, location: str) -> str:
    """A path below the model's folder; raises `ValueError` for one that leaves it."""
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, location))
    if os.path.commonpath([root, path]) != root:
        raise ValueError(f"{location!r} is outside the folder of the model")
    return path
