"""Matrix products by a library on the CPU: accepted strides, and the workspace they need.

The library computes in float32, from float32 and bfloat16 operands. It reads only contiguous
matrices, so others are copied first under every strategy. The distance between the rows of an
operand changes no bit.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from graphc.codegen.onednn import THREADS, is_native
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import DType, TensorType, align, bfloat16, float32, memory_order, pieces

ROWS, COLUMNS, CHUNKS = (32, 256), 64, 16
"""Block sizes of a thread: rows (minimum, maximum) and columns.

If a thread packs the rows, it works on at most `CHUNKS` adjacent blocks of columns.
"""

MOST_BYTES = 4 * 2**20
"""Maximum bytes of workspace. Only products with tens of thousands of rows and few columns request
more, to divide their sums among threads. With less workspace they run on one thread.
"""

MOST_COLUMNS = 2048
"""The most columns of a float32 product at once, if the second matrix is stored by rows."""

LEAST_ROWS = 32
"""The fewest rows of products in parts. With fewer rows, packing takes longer than it saves."""

TILES = 4096
"""Bytes per thread of the tiles with which AMX multiplies bfloat16."""

PADDING = 128
"""Maximum bytes by which a part of the workspace is shifted to be aligned; also the alignment."""


def native_bytes(node: Node, strided: Strided) -> int:
    """Return the bytes that a product needs in addition to the workspace of its NumPy kernel.

    `strided` has the strides of values that are not row-major and contiguous.
    """
    if not is_native(node):
        return 0
    flags = node.attributes
    is_linear = node.op.name == "linear"
    transposes = (
        not is_linear and flags.transpose_a,
        is_linear or flags.transpose_b,
    )
    (a, b), y = node.inputs[:2], node.output
    may_split = not is_linear and transposes[1] == _lies_by_columns(b, strided)
    parts = column_parts(y.shape[-2], y.shape[-1], b.type.dtype) if may_split else 1
    product = _Product(
        rows=y.shape[-2],
        inner=a.shape[-2] if transposes[0] else a.shape[-1],
        columns=y.shape[-1] // parts,
        batch=math.prod(y.shape[:-2]) * parts,
        by_columns=y.shape[-2] > 1 and transposes[0] != _lies_by_columns(a, strided),
        is_in_one_piece=a not in strided or _lies_by_columns(a, strided),
        row=strided[a][-2] // a.type.dtype.itemsize if a in strided else a.shape[-1],
        is_weight_in_rows=(
            parts == 1 and b not in strided and (not transposes[1] or y.shape[-1] == 1)
        ),
        dtype=a.type.dtype,
        sums=y.type.dtype != float32 or (not is_linear and flags.accumulate),
    )
    return PADDING + min(MOST_BYTES, _scratch_bytes(product))


def column_parts(rows: int, columns: int, dtype: DType) -> int:
    """Return the number of equal parts in which the columns of a product are computed.

    It applies to products without a bias whose second matrix is stored by rows. Unless it is split,
    the library does not pack such a matrix, and needs up to twice the time for some large numbers
    of columns, such as 3,072.
    """
    is_wide = columns > MOST_COLUMNS and not _is_power(columns)
    if dtype != float32 or rows < LEAST_ROWS or not is_wide:
        return 1
    least = -(-columns // MOST_COLUMNS)
    return next((n for n in range(least, 2 * least + 1) if columns % (16 * n) == 0), 1)


def _lies_by_columns(value: Value, strided: Strided) -> bool:
    strides = strided.get(value)
    return strides is not None and strides[-2] < strides[-1]


@dataclass(frozen=True, slots=True)
class _Product:
    """A batch of products as the library describes it.

    Each matrix of the first operand is contiguous, or the rows of all heads are interleaved; `row`
    is the distance between rows. `sums` is true if blocks of the result cannot be accumulated in
    place, because they are narrow or hold a running sum.
    """

    rows: int
    inner: int
    columns: int
    batch: int
    by_columns: bool
    is_in_one_piece: bool
    row: int
    is_weight_in_rows: bool
    dtype: DType
    sums: bool


@functools.lru_cache(maxsize=8192)
def _scratch_bytes(p: _Product) -> int:
    """Return the workspace that oneDNN 3.2 requests on two threads with AVX-512, or slightly more.

    With AMX only the tiles are counted, which suffices for many products. Products with few rows or
    wide sums then run without AMX.

    Each thread packs a block of the first operand if the operand is column-major. It packs a block
    of the second operand if the operand is not row-major, has a power of 2 of columns or is narrow.
    It accumulates a block of the result separately if that is impossible in place. See
    `init_scratchpad` and `compute_blocking_heuristic` in `brgemm_matmul_utils.cpp`.
    """
    size, is_narrow = p.dtype.itemsize, p.dtype == bfloat16
    is_far = p.rows >= 1024 and any(n >= 4096 and _is_power(n) for n in (p.inner, p.row))
    # A single row or column may be treated as either.
    brings_rows = p.by_columns or 1 in (p.rows, p.inner) or (is_narrow and is_far)
    is_long = p.inner > 1024 and not (p.by_columns and p.is_in_one_piece)
    inner = min(p.inner, 1024 if is_long else 512)
    rows, chunks = _block(p.rows, -(-p.columns // COLUMNS), p.batch, brings_rows)
    parts = [TILES] if is_narrow else []
    if brings_rows:
        line = 64 // size
        reach = align(inner, line)
        parts.append(rows * (reach + line * (reach >= 512 and _is_power(reach))) * size)
    elif is_narrow and p.inner % 2:
        parts.append(rows * 32 * size)
    is_wide = p.columns > 256 and _is_power(p.columns)
    if is_narrow or is_wide or not p.is_weight_in_rows:
        parts.append(COLUMNS * align(inner, 64 // size) * size)
    sums = 0
    if p.sums and p.inner > inner:
        sums = rows * chunks * min(p.columns, COLUMNS)
    is_deep = p.inner >= 2048 and (not is_narrow or _is_power(p.inner))
    if p.by_columns and p.batch == 1 and is_deep and p.columns <= COLUMNS:
        sums = max(sums, p.rows * p.columns)
    if sums:
        parts.append(sums * float32.itemsize)
    return 9 * PADDING + sum(THREADS * part + PADDING for part in parts)


def _block(rows: int, blocks: int, batch: int, brings_rows: bool) -> tuple[int, int]:
    """Return the rows of a block, and the number of adjacent blocks of columns.

    The library takes the largest sizes that balance the load of all threads. If no sizes do, it
    takes smaller ones than the maximum that is returned here.
    """
    least, most = min(rows, ROWS[0]), min(rows, ROWS[1])
    beside = min(blocks, CHUNKS) if brings_rows else 1
    if batch * blocks >= THREADS:
        for chunk in range(beside, 0, -1):
            for part in range(most, least - 1, -1):
                if rows % part or blocks % chunk:
                    continue
                if rows // part * (blocks // chunk) * batch % THREADS == 0:
                    return part, chunk
    return most, beside


def _is_power(extent: int) -> bool:
    """Return true if an extent is a power of 2."""
    return extent & (extent - 1) == 0


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if the library reads an operand with these strides.

    It must be contiguous, by rows or by columns, with whole matrices one after another or with
    interleaved rows of all heads. A bias and a running sum may have any strides: the bias is
    copied, and NumPy reads a sum with unsupported strides.
    """
    if not is_native(node) or name in ("bias", "sum"):
        return True
    if pieces(type, strides) > 1:
        return False
    long = {axis for axis, extent in enumerate(type.shape) if extent > 1}
    return any(
        memory_order(type.shape, strides) == tuple(axis for axis in order if axis in long)
        for order in _orders(type.rank)
    )


def _orders(rank: int) -> list[tuple[int, ...]]:
    """Return the supported memory orders of the axes of an operand, each from the outermost to the
    innermost."""
    *outer, rows, columns = range(rank)
    orders = [(*outer, rows, columns), (*outer, columns, rows)]
    if outer:
        *first, heads = outer
        orders += [(*first, rows, heads, columns), (*first, columns, heads, rows)]
    return orders
