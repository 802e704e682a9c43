"""Element types, tensor types and byte layouts. Sizes are bytes unless a name says otherwise."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError, quoted

Kind = Literal["float", "float8", "int", "bool"]
"""The kind of a dtype. Only a few ops take operands of kind ``float8``; see `FLOAT8`."""


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its full name, the short name used in text, and its NumPy dtype."""

    name: str
    short: str
    kind: Kind
    itemsize: int
    numpy: np.dtype[Any] = field(compare=False)

    def __repr__(self) -> str:
        return self.name


def _dtype(name: str, short: str, kind: Kind, numpy: Any) -> DType:
    return DType(name, short, kind, np.dtype(numpy).itemsize, np.dtype(numpy))


float32 = _dtype("float32", "f32", "float", np.float32)
float16 = _dtype("float16", "f16", "float", np.float16)
bfloat16 = _dtype("bfloat16", "bf16", "float", ml_dtypes.bfloat16)
float64 = _dtype("float64", "f64", "float", np.float64)
int32 = _dtype("int32", "i32", "int", np.int32)
int64 = _dtype("int64", "i64", "int", np.int64)
uint8 = _dtype("uint8", "u8", "int", np.uint8)
bool_ = _dtype("bool", "b1", "bool", np.bool_)

float8_e4m3 = _dtype("float8_e4m3", "f8e4m3", "float8", ml_dtypes.float8_e4m3fn)
float8_e5m2 = _dtype("float8_e5m2", "f8e5m2", "float8", ml_dtypes.float8_e5m2)

DTYPES = (float32, float16, bfloat16, float64, int32, int64, uint8, bool_)
"""The dtypes of inputs, states and outputs."""

FLOAT8 = (float8_e4m3, float8_e5m2)
"""The 8-bit floats of Micikevicius et al. (2022): 4 bits of exponent and 3 of mantissa, or 5 and 2.

Operands of products have them inside a step with precision fp8. The first one has no infinity.
"""

_BY_NAME = {dtype.name: dtype for dtype in DTYPES}
_BY_SHORT = {dtype.short: dtype for dtype in DTYPES}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES}


def as_dtype(given: object) -> DType:
    """Return the `DType` of a name ("float32"), a short name ("f32"), a NumPy dtype or `DType`."""
    if isinstance(given, DType):
        return given
    if isinstance(given, str):
        found = _BY_NAME.get(given) or _BY_SHORT.get(given)
    else:
        try:
            found = None if given is None else _BY_NUMPY.get(np.dtype(given))  # type: ignore[call-overload]
        except (TypeError, ValueError):
            found = None
    if found is None:
        names = ", ".join(dtype.name for dtype in DTYPES)
        raise DTypeError(f"unknown dtype {quoted(given)}; choose one of: {names}")
    return found


def inner_dtype(name: str) -> DType:
    """Return the dtype of that name or short name, which may be one of `FLOAT8`."""
    return next((d for d in FLOAT8 if name in (d.name, d.short)), None) or as_dtype(name)


def compute_dtype(dtype: DType) -> DType:
    """Return the type to compute in: float32 for the 16-bit floats, else the type itself."""
    return float32 if dtype.kind == "float" and dtype.itemsize < 4 else dtype


MOST_BYTES = 2**60
"""A limit for each tensor and for all values of a graph together, so that sizes fit in 64 bits."""

MOST_AXES = 64
"""The largest number of axes of a NumPy array."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static shape and an element type; `bytes` is the size of a contiguous tensor."""

    shape: tuple[int, ...]
    dtype: DType
    elements: int = field(init=False, compare=False, repr=False)
    bytes: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for extent in self.shape:
            if not isinstance(extent, int) or extent < 1:
                raise ShapeError(
                    f"shape {quoted(list(self.shape))} has the extent {quoted(extent)}; extents "
                    "must be integers of at least 1 (empty tensors are not supported)"
                )
        elements = math.prod(self.shape)
        if elements * self.dtype.itemsize >= MOST_BYTES or len(self.shape) > MOST_AXES:
            raise ShapeError(
                f"a tensor must have less than 2**60 bytes and at most {MOST_AXES} axes, got the "
                f"shape {quoted(list(self.shape))} of {self.dtype}"
            )
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "bytes", elements * self.dtype.itemsize)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def with_shape(self, shape: Sequence[int]) -> TensorType:
        return TensorType(tuple(shape), self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]"


def tensor_type(shape: Sequence[int] | int, dtype: object) -> TensorType:
    """Return a `TensorType` from user input: any integer types, an int for rank 1, dtype names."""
    extents = (shape,) if isinstance(shape, int | np.integer) else shape
    try:
        whole = tuple(int(extent) for extent in extents)
    except (TypeError, ValueError):
        raise ShapeError(f"a shape must be a sequence of integers, got {quoted(shape)}") from None
    if any(isinstance(n, bool) or n != extent for n, extent in zip(extents, whole, strict=True)):
        raise ShapeError(f"a shape must be a sequence of integers, got {quoted(shape)}")
    return TensorType(whole, as_dtype(dtype))


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a view: byte offset from its storage's start, byte stride per axis."""

    offset: int
    strides: tuple[int, ...]


def contiguous_strides(type: TensorType) -> tuple[int, ...]:
    """Return the byte strides of a contiguous, row-major tensor."""
    strides = []
    step = type.dtype.itemsize
    for extent in reversed(type.shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def outer_axes(type: TensorType, strides: tuple[int, ...]) -> int:
    """Return the least number of leading axes after which axes are contiguous and row-major."""
    step = type.dtype.itemsize
    for axis in reversed(range(type.rank)):
        if type.shape[axis] != 1 and strides[axis] != step:
            return axis + 1
        step *= type.shape[axis]
    return 0


def channels_last_strides(type: TensorType) -> tuple[int, ...]:
    """Return byte strides of contiguous (batch, channels, height, width), channels innermost."""
    n, c, h, w = type.shape
    batch, height, width, channels = contiguous_strides(type.with_shape((n, h, w, c)))
    return batch, channels, height, width


ROW_BYTES = 16
"""The alignment of matrix rows for the widest memory accesses, and for tensor cores."""


def padded_extent(extent: int, itemsize: int) -> int:
    """Return the distance, in elements, between the starts of aligned rows of `extent` elements.

    Rows of less than 128 bytes are not padded, so padding is less than an eighth of a row.
    """
    row = extent * itemsize
    return extent if row < 8 * ROW_BYTES else align(row, ROW_BYTES) // itemsize


def padded_strides(type: TensorType) -> tuple[int, ...]:
    """Return byte strides of a tensor that is row-major except for the padding of its rows."""
    if type.rank < 2:
        return contiguous_strides(type)
    *outer, inner = type.shape
    padded = padded_extent(inner, type.dtype.itemsize)
    return contiguous_strides(type.with_shape((*outer, padded)))


def is_channels_last(type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return whether (batch, channels, height, width) is contiguous with channels innermost."""
    wanted = zip(type.shape, strides, channels_last_strides(type), strict=True)
    return all(n == 1 or given == last for n, given, last in wanted)


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes with more than one element, from outermost to innermost in memory."""
    axes = (axis for axis, extent in enumerate(shape) if extent > 1)
    return tuple(sorted(axes, key=lambda axis: -strides[axis]))


def axes_in_memory(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return all axes; those with several elements are ordered from outermost to innermost."""
    ordered = iter(memory_order(shape, strides))
    return tuple(next(ordered) if n > 1 else axis for axis, n in enumerate(shape))


def same_order(type: TensorType, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether both strides order the axes of a tensor in memory in the same way."""
    return memory_order(type.shape, one) == memory_order(type.shape, other)


def pieces(type: TensorType, strides: tuple[int, ...]) -> int:
    """Return the number of contiguous byte ranges of a tensor whose elements do not share bytes."""
    reach, count = type.dtype.itemsize, 1
    for axis in reversed(memory_order(type.shape, strides)):
        if count == 1 and strides[axis] == reach:
            reach *= type.shape[axis]
        else:
            count *= type.shape[axis]
    return count


def span_bytes(type: TensorType, layout: Layout) -> int:
    """Return the bytes from a view's first element to the end of its last one."""
    reach = sum((n - 1) * stride for n, stride in zip(type.shape, layout.strides, strict=True))
    return reach + type.dtype.itemsize


def normalize_axis(axis: object, rank: int, where: str) -> int:
    """Return `axis` counted from the front; raises `ShapeError` outside `[-rank, rank)`."""
    rule = f"{where}: an axis must be an integer, got {quoted(axis)}"
    try:
        number = _index(axis)
    except TypeError:
        raise ShapeError(rule) from None
    if not -rank <= number < rank:
        raise ShapeError(
            f"{where}: axis {quoted(number)} is out of range for a tensor of rank {rank}"
        )
    return number % rank


def _index(given: Any) -> int:
    """Return `given` as an int; raises `TypeError` unless it is an integer and no bool."""
    if isinstance(given, bool):
        raise TypeError
    return operator.index(given)


def as_shape(where: str, given: object) -> tuple[int, ...]:
    """Return a shape from a whole number or a sequence of them; does not check extents."""
    try:
        extents: Iterable[Any] = given if isinstance(given, Iterable) else (given,)
        return tuple(map(_index, extents))
    except TypeError:
        raise ShapeError(
            f"{where}: a shape must consist of integers, got {quoted(given)}"
        ) from None


def broadcast_shapes(where: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape from NumPy's broadcasting: aligned at the last axis, extents equal or 1."""
    if all(shape == shapes[0] for shape in shapes[1:]):
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(
            f"{where}: shapes {listed} do not broadcast; aligned at the last axis, extents must be "
            "equal or 1. Reshape one of them, or insert axes of extent 1"
        ) from None


def align(size: int, alignment: int) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


LARGEST = {
    dtype: float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    for dtype in (*DTYPES, *FLOAT8)
    if dtype.kind in ("float", "float8")
}
"""The largest finite number of each float dtype."""


def number_of(where: str, given: object, dtype: DType) -> float:
    """Return a number that `dtype` can hold, as a float; raises `OptionError` or `DTypeError`."""
    if isinstance(given, bool | np.bool_) and dtype.kind != "bool":
        given = int(given)
    if not isinstance(given, int | float | np.number | np.bool_):
        cure = "; graphc.constant converts it to a value" if isinstance(given, np.ndarray) else ""
        raise OptionError(
            f"{where}: expected a number, got {quoted(given)} ({type(given).__name__}){cure}"
        )
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if dtype.kind == "float":
        if abs(number) > LARGEST[dtype] and abs(given) != math.inf:
            raise DTypeError(
                f"{where}: {quoted(given)} exceeds {LARGEST[dtype]:g}, the largest {dtype}"
            )
        return number
    low, high = (0, 1) if dtype.kind == "bool" else _limits(dtype)
    if number != given or number % 1 or not low <= number <= high:
        raise DTypeError(
            f"{where}: {quoted(given)} is not exactly representable as {dtype} (integers from "
            f"{low} to {high}; at most 2**53 next to values); convert the value with graphc.cast"
        )
    return number


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)
