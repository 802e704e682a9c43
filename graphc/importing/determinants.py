"""Determinants and inverses of small matrices, by Laplace expansion."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.ops.concat import stack
from graphc.ops.elementwise import add, div, mul, neg, sub
from graphc.ops.indexing import slice_
from graphc.ops.shape import full, reshape

MOST_ROWS = 4
"""Maximum number of rows of a matrix whose determinant or inverse is computed."""


def determinant(x: Value) -> Value:
    """Return the determinants of matrices; raises `UnsupportedError` above `MOST_ROWS` rows."""
    n = _rows(x)
    return _minor(x, range(n), range(n))


def inverse(x: Value) -> Value:
    """Return the inverses of matrices; those of singular matrices are not finite.

    Raises `UnsupportedError` above `MOST_ROWS` rows.
    """
    n = _rows(x)
    rows = [stack([_cofactor(x, j, i) for j in range(n)], x.type.rank - 2) for i in range(n)]
    found = stack(rows, x.type.rank - 2)
    return div(found, reshape(determinant(x), (*x.shape[:-2], 1, 1)))


def _rows(x: Value) -> int:
    n = x.shape[-1]
    if x.shape[-2:] != (n, n) or n > MOST_ROWS:
        raise UnsupportedError(
            f"determinants are supported for at most {MOST_ROWS} rows, got {x.type}"
        )
    return n


def _cofactor(x: Value, row: int, column: int) -> Value:
    """Return the determinant of matrices without a row and a column, with its sign as cofactor."""
    rows, columns = ([k for k in range(x.shape[-1]) if k != out] for out in (row, column))
    if not rows:
        return full(x.shape[:-2], 1.0, x.type.dtype)
    found = _minor(x, rows, columns)
    return neg(found) if (row + column) % 2 else found


def _minor(x: Value, rows: Sequence[int], columns: Sequence[int]) -> Value:
    row, *below = rows
    first, *rest = (
        slice_(x, (..., row, column))
        if len(columns) == 1
        else mul(
            slice_(x, (..., row, column)),
            _minor(x, below, [c for c in columns if c != column]),
        )
        for column in columns
    )
    total = first
    for number, term in enumerate(rest, 1):
        total = sub(total, term) if number % 2 else add(total, term)
    return total
