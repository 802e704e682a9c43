"""Matrix products as calls of a column-major BLAS.

A row-major matrix is, byte for byte, the transpose of a column-major one. So C = op(A) · op(B) is
computed as Cᵀ = op(B)ᵀ · op(A)ᵀ: the operands are swapped, and no byte moves. Leading dimensions,
strides and offsets count elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphc.codegen.node_calls import Epilogue, Gemm, Matrix
from graphc.codegen.text.operands import Operand, Place, collapse, operand
from graphc.errors import OptionError
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, bfloat16, float8_e4m3, float8_e5m2, float16, float32, float64
from graphc.ops.matmul import Activation

DATA_TYPES = {
    float32: 0, float64: 1, float16: 2, bfloat16: 14, float8_e4m3: 28, float8_e5m2: 29,
}  # fmt: skip
"""The values of `cudaDataType` by dtype."""

COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
"""Values of `cublasComputeType_t`."""

EPILOGUES: Mapping[Activation, Epilogue] = {"none": "bias", "gelu": "bias_gelu"}
"""The epilogue of a linear node, by its activation."""


def gemms(
    node: Node, places: Mapping[Value, Place], tf32: bool = False, epilogues: bool = True
) -> tuple[Gemm, ...]:
    """Return the calls of a node that is a matrix product, usually one.

    The bias and the activation of `linear` are an epilogue if `has_epilogue`. Otherwise, and with a
    running sum (`accumulate`), y must hold the bias or the sum before the first call: beta is 1.
    The sums of `product_with_sums` are an epilogue if they are not float64.
    Several calls are needed only if the batch axes of an operand cannot be merged into one. `tf32`
    lets float32 products round their operands to 10 bits of mantissa. Raises `OptionError` for an
    operand that `needs_copy`.
    """
    a, b = node.inputs[:2]
    c = node.outputs[0]
    epilogue, bias = _epilogue(node, places) if epilogues else ("none", None)
    transpose_a, transpose_b, adds = _flags(node)
    if node.op.name == "linear":
        adds = epilogue == "none"
    first, second, result = (_readable(node, v, places[v]) for v in (b, a, c))
    if result.is_transposed:
        raise OptionError(
            f"{node.label}: the rows of the output must be contiguous, got byte strides "
            f"{places[c].strides}"
        )
    rows, columns = c.shape[-2:]
    inner = a.shape[-2] if transpose_a else a.shape[-1]
    return tuple(
        Gemm(
            transpose_b != first.is_transposed,
            transpose_a != second.is_transposed,
            columns,
            rows,
            inner,
            *matrices,
            1.0 if adds else 0.0,
            batch,
            compute_type(a.type.dtype, tf32),
            epilogue,
            bias,
            alpha=getattr(node.attributes, "alpha", 1.0),
            of=math.prod(c.shape[:-2]),
            shared=(_is_one_matrix(b), _is_one_matrix(a)),
        )
        for batch, matrices in _batches(c.shape[:-2], (first, second, result), places)
    )


def _is_one_matrix(value: Value) -> bool:
    return math.prod(value.shape[:-2]) == 1


def _flags(node: Node) -> tuple[bool, bool, bool]:
    """Return whether a product transposes its operands, and adds its result to a running sum."""
    match node.op.name:
        case "linear":
            return False, True, False
        case "product_with_sums":
            return True, False, False
    flags = node.attributes
    return flags.transpose_a, flags.transpose_b, flags.accumulate


def _epilogue(node: Node, places: Mapping[Value, Place]) -> tuple[Epilogue, Value | None]:
    """Return the epilogue of a product, and the value in place of its bias."""
    match node.op.name:
        case "linear" if has_epilogue(node, places):
            return EPILOGUES[node.attributes.activation], node.inputs[2]
        case "product_with_sums" if node.outputs[1].type.dtype != float64:
            return "sums", node.outputs[1]
    return "none", None


def has_epilogue(node: Node, places: Mapping[Value, Place]) -> bool:
    """Return true if a BLAS adds a linear node's bias and applies its activation.

    cuBLASLt has no such epilogues for float64, and needs a contiguous bias.
    """
    bias = node.inputs[2]
    size = bias.type.dtype.itemsize
    is_whole = bias.shape[0] == 1 or places[bias].strides == (size,)
    return bias.type.dtype != float64 and is_whole


def needs_copy(value: Value, strides: tuple[int, ...]) -> bool:
    """Return true if no BLAS can read a matrix, because neither its rows nor its columns are
    contiguous."""
    size = value.type.dtype.itemsize
    below, right = (stride // size for stride in strides[-2:])
    rows, columns = value.shape[-2:]
    return stored(rows, columns, below, right) is None


def stored(rows: int, columns: int, below: int, right: int) -> tuple[bool, int] | None:
    """Return (true if column-major, false if row-major; leading dimension) of a matrix. `below` and
    `right` are the strides to the next row and column. Returns None if no BLAS can read the matrix.
    """
    if (columns == 1 or right == 1) and (rows == 1 or below >= columns):
        return False, below if rows > 1 else columns
    if (rows == 1 or below == 1) and (columns == 1 or right >= rows):
        return True, right if columns > 1 else rows
    return None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A value whose last two axes are matrices, stored by rows or, if `is_transposed`, by
    columns."""

    value: Value
    is_transposed: bool
    leading: int


def _readable(node: Node, value: Value, place: Place) -> _Stored:
    size = value.type.dtype.itemsize
    below, right = (stride // size for stride in place.strides[-2:])
    rows, columns = value.shape[-2:]
    found = stored(rows, columns, below, right)
    if found is None:
        raise OptionError(f"{node.label}: {value} has no axis of stride 1; copy it first")
    return _Stored(value, *found)


def _batches(
    shape: tuple[int, ...], stored: Sequence[_Stored], places: Mapping[Value, Place]
) -> list[tuple[int, tuple[Matrix, Matrix, Matrix]]]:
    """Return (batch size, matrices) for each call. The longest batch axis is the batch of a call;
    the calls loop over the other axes."""
    operands = [_batch_operand(s.value, places[s.value], shape) for s in stored]
    extents, strides = collapse(shape, operands)
    inner = max(range(len(extents)), key=lambda axis: (extents[axis], axis), default=None)
    others = [axis for axis in range(len(extents)) if axis != inner]
    batch = 1 if inner is None else extents[inner]
    calls = []
    for index in itertools.product(*(range(extents[axis]) for axis in others)):
        first, second, c = (
            Matrix(
                s.value,
                s.value.type.dtype,
                sum(i * o.strides[axis] for i, axis in zip(index, others, strict=True)),
                s.leading,
                0 if inner is None else o.strides[inner],
            )
            for s, o in zip(stored, strides, strict=True)
        )
        calls.append((batch, (first, second, c)))
    return calls


def _batch_operand(value: Value, place: Place, shape: tuple[int, ...]) -> Operand:
    whole = operand("", value, place, (*shape, *value.shape[-2:]))
    return whole.on(whole.strides[:-2])


def compute_type(dtype: DType, tf32: bool) -> int:
    """Return the `cublasComputeType_t` of a product of that dtype."""
    if dtype == float64:
        return COMPUTE_64F
    return COMPUTE_32F_FAST_TF32 if tf32 and dtype == float32 else COMPUTE_32F
