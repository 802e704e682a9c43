"""Input types of an ONNX file, and binding of its symbolic extents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from graphc.errors import GraphcError, OptionError, or_all, quoted
from graphc.importing.weights import Array
from graphc.ir.types import TensorType, as_dtype
from graphc.onnx.model import Model, parsed

Dims = Mapping[str, int | Sequence[int]]


def input_extents(path: str | os.PathLike[str]) -> dict[str, tuple[int | str | None, ...] | None]:
    """Return the extents of each fed input: numbers, names or None; None if the rank is unknown.

    Raises `OnnxError` for a file that is not ONNX.
    """
    proto, _ = parsed(path)
    held = {tensor.name for tensor in proto.graph.initializer}
    found: dict[str, tuple[int | str | None, ...] | None] = {}
    for value in proto.graph.input:
        if value.name in held:
            continue
        type = value.type.tensor_type
        has_rank = value.type.HasField("tensor_type") and type.HasField("shape")
        found[value.name] = (
            tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in type.shape.dim
            )
            if has_rank
            else None
        )
    return found


def known_arrays(model: Model, known: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of inputs whose values are known; raise `OptionError` if invalid.

    It is raised for unknown names, too.
    """
    if not isinstance(known, Mapping):
        raise OptionError(f"known must map names of inputs to arrays, got {quoted(known)}")
    inputs = {value.name: value for value in model.inputs}
    for name in known:
        if name not in inputs:
            raise OptionError(f"known: the model has no input {name!r}; {or_all(name, inputs)}")
    return {name: _known(inputs[name], given) for name, given in known.items()}


def _known(value: onnx.ValueInfoProto, given: Any) -> Array:
    array = _array(value.name, given)
    type = value.type.tensor_type
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(type.elem_type))
    except (KeyError, TypeError, ValueError):
        return array  # reported later, with the other unsupported features
    is_typed = hasattr(given, "dtype")
    if not is_typed:
        array = _held(array, dtype)
    fixed = [d.dim_value if d.HasField("dim_value") else None for d in type.shape.dim]
    is_ranked = not type.HasField("shape") or len(fixed) == array.ndim
    fits = all(m in (n, None) for m, n in zip(fixed, array.shape, strict=False))
    if array.dtype != dtype or not is_ranked or not fits:
        wanted = f"{_declared(value)} of {element_type(type.elem_type)}"
        got = f"{list(array.shape)} of {array.dtype}" + ("" if is_typed else f", {quoted(given)}")
        raise OptionError(f"known: the input {value.name!r} must be {wanted}, got {got}")
    return array


def _array(name: str, given: Any) -> Array:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise OptionError(f"known: {name!r} is not an array: {error}") from None


def _held(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert Python numbers to the dtype of an input; return them unchanged if this is impossible.

    Floats may be rounded but must not overflow. Integers and bools must be exact.
    """
    if array.dtype.kind not in "biuf":
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        is_held = (
            np.array_equal(cast, array)
            if dtype.kind in "biu"
            else np.array_equal(np.isfinite(cast.astype(np.float64)), np.isfinite(array))
        )
    return cast if is_held else array


def bound_types(
    model: Model, dims: Dims, known: Mapping[str, Array]
) -> dict[str, TensorType | str]:
    """Return the type of each input with all extents bound, or a sentence on what is missing.

    A symbol bound by the shape of one input holds for all inputs. Raises `OptionError` for unknown
    names in `dims`, and for contradictory numbers.
    """
    inputs = {value.name: value for value in model.inputs}
    symbols = {name for value in inputs.values() for name in _symbols(value)}
    _check_dims(dims, inputs.keys() | symbols)
    shapes = {
        name: tuple(given) if isinstance(given, Sequence) else (given,)
        for name, given in dims.items()
        if name in inputs and (isinstance(given, Sequence) or name not in symbols)
    }
    for name, array in known.items():
        if shapes.setdefault(name, array.shape) != array.shape:
            told = f"{quoted(shapes[name])} and in known {quoted(array.shape)}"
            raise OptionError(f"dims: the input {name!r} has two shapes, {told}; give one")
    numbers = {name: n for name, n in dims.items() if isinstance(n, int) and name in symbols}
    for name, shape in shapes.items():
        _settle(inputs[name], shape, numbers)
    return {name: _bound(value, shapes.get(name), numbers) for name, value in inputs.items()}


def _check_dims(dims: Dims, there: Iterable[str]) -> None:
    if not isinstance(dims, Mapping):
        raise OptionError(
            f"dims must map names to numbers, such as {{'N': 32}}, got {quoted(dims)}"
        )
    names = sorted(there)
    for name, given in dims.items():
        if name not in names:
            raise OptionError(
                f"dims: the model has no extent or input {name!r}; {or_all(name, names)}"
            )
        extents = given if isinstance(given, Sequence) else (given,)
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in extents):
            raise OptionError(f"dims: {name!r} must be integers of at least 1, got {quoted(given)}")


def _settle(value: onnx.ValueInfoProto, shape: tuple[int, ...], numbers: dict[str, int]) -> None:
    """Bind the symbols of an input to the extents of a given shape.

    Extents that are fixed in the file may have other values in the shape.
    """
    type = value.type.tensor_type
    if type.HasField("shape") and len(shape) != len(type.shape.dim):
        raise OptionError(
            f"dims: the input {value.name!r} must be {_declared(value)}, got the shape "
            f"{quoted(shape)}"
        )
    for dim, extent in zip(type.shape.dim, shape, strict=False):
        if dim.dim_param and numbers.setdefault(dim.dim_param, extent) != extent:
            raise OptionError(
                f"the extent {dim.dim_param!r} is {numbers[dim.dim_param]}, but the input "
                f"{value.name!r}, declared as {_declared(value)}, has the shape {quoted(shape)}; "
                "use one number for both"
            )


def _symbols(value: onnx.ValueInfoProto) -> list[str]:
    return [d.dim_param for d in value.type.tensor_type.shape.dim if d.dim_param]


def _bound(
    value: onnx.ValueInfoProto, shape: tuple[int, ...] | None, numbers: Mapping[str, int]
) -> TensorType | str:
    """Return the type of an input with its symbols bound, or a sentence on what is missing."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return f"input {value.name!r} is a {str(kind).removesuffix('_type')}, not a tensor"
    type = value.type.tensor_type
    try:
        dtype = as_dtype(helper.tensor_dtype_to_np_dtype(type.elem_type))
    except (KeyError, TypeError, ValueError, GraphcError):
        return f"input {value.name!r} has the element type {element_type(type.elem_type)}"
    if shape is None and not type.HasField("shape"):
        return f"input {value.name!r} has no rank; give its shape as dims={{{value.name!r}: (...)}}"
    extents: tuple[int | None, ...] | None = shape
    if extents is None:
        extents = tuple(
            d.dim_value if d.HasField("dim_value") else numbers.get(d.dim_param)
            for d in type.shape.dim
        )
    if None in extents:
        return _unknown(value, extents)
    try:
        return TensorType(tuple(int(n) for n in extents if n is not None), dtype)
    except GraphcError as error:
        return f"input {value.name!r}: {error}"


def _unknown(value: onnx.ValueInfoProto, extents: Sequence[int | None]) -> str:
    listed = zip(value.type.tensor_type.shape.dim, extents, strict=True)
    named = [d.dim_param for d, n in listed if n is None and d.dim_param]
    cure = f"dims={{{named[0]!r}: 1}}" if named else f"dims={{{value.name!r}: (...)}}"
    return (
        f"input {value.name!r} is {_declared(value)}; give numbers for unknown extents, such as "
        f"{cure}"
    )


def _declared(value: onnx.ValueInfoProto) -> str:
    """Format the shape of an input as the file declares it."""
    if not value.type.tensor_type.HasField("shape"):
        return "of any shape"
    dims = value.type.tensor_type.shape.dim
    shown = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims)
    return f"[{', '.join(shown)}]"


def element_type(number: int) -> str:
    """Return the ONNX name of an element type."""
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except ValueError:
        return f"number {number}"
