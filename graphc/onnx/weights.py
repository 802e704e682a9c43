"""Tensors of an ONNX file, including external data."""

from __future__ import annotations

import math
import os

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from graphc.errors import OnnxError, quoted
from graphc.importing.weights import Array, Weight


def stored(tensor: onnx.TensorProto, folder: str) -> Weight:
    """Return a tensor of a file; `folder` contains its external data.

    Raises `OnnxError` for element types that NumPy does not support, and for negative extents.
    """
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        raise OnnxError(
            f"tensor {tensor.name!r} has the unknown element type {tensor.data_type}"
        ) from None
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise OnnxError(f"tensor {tensor.name!r} has the invalid shape {quoted(list(shape))}")
    return Weight(
        tensor.name,
        shape,
        np.dtype(dtype),
        lambda: _numbers(tensor, folder),
        is_external=external_data_helper.uses_external_data(tensor),
    )


def _numbers(tensor: onnx.TensorProto, folder: str) -> Array:
    """Return the content of a tensor as an array; raise `OnnxError` if it is not available."""
    if external_data_helper.uses_external_data(tensor):
        return _external(tensor, folder)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"tensor {tensor.name!r} cannot be read: {error}") from None


def _external(tensor: onnx.TensorProto, folder: str) -> Array:
    """Return external data as a memory-mapped array, without copying."""
    try:
        entry = external_data_helper.ExternalDataInfo(tensor)
        path = _beside(folder, entry.location)
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
        count = math.prod(tensor.dims)
        offset = int(entry.offset or 0)
        length = int(entry.length or 0)
        if dtype.itemsize * count not in (length, 0) and length:
            raise ValueError(
                f"{count} numbers of {dtype} need {dtype.itemsize * count} bytes, got {length}"
            )
        if not count:
            return np.empty(tuple(tensor.dims), dtype)
        mapped = np.memmap(path, dtype.newbyteorder("<"), "r", offset, (count,))
        return np.asarray(mapped).reshape(tuple(tensor.dims)).astype(dtype, copy=False)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise OnnxError(f"the external data of {tensor.name!r} cannot be read: {error}") from None


def _beside(folder: str, location: str) -> str:
    """Return the path of external data in the model's folder.

    Raises `ValueError` for a path outside of the folder.
    """
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, location))
    if os.path.commonpath([root, path]) != root:
        raise ValueError(f"{location!r} is outside the folder of the model")
    return path
