"""The arithmetic of fused attention on the CPU: a block of query rows at a time.

No more of the (rows x columns) scores is held than one tile, so memory grows with the number of
positions, not with its square (Rabe and Staats, 2021; Dao et al., 2022). A tile holds all columns
that its rows see: sums then need no correction as in the kernels of a GPU. The gradient computes
each tile again, from the logarithms of the rows' sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from graphc.ir.op import Array

TILE_ROWS = 128
TILE_ELEMENTS = 2**18
"""Elements of a tile, unless one row has more."""


def tile_shape(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the largest tile."""
    return max(1, min(rows, TILE_ROWS, TILE_ELEMENTS // columns)), columns


class Block(NamedTuple):
    """Query rows [first, last), which see columns [0, seen)."""

    first: int
    last: int
    seen: int


def blocks(rows: int, columns: int, causal: bool) -> Iterator[Block]:
    """All query rows in order. A causal row sees no column of a later row."""
    step, _ = tile_shape(rows, columns)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        yield Block(first, last, last + columns - rows if causal else columns)


def attend(
    scale: float,
    causal: bool,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    stats: Array,
    tile: Array,
    total: Array,
) -> None:
    """y = softmax(scale · q · kᵀ) · v, and the logarithm of each row's sum; the last two arrays
    are scratch."""
    rows, columns = q.shape[2], k.shape[2]
    for head in np.ndindex(q.shape[:2]):
        for block in blocks(rows, columns, causal):
            part, seen = slice(block.first, block.last), slice(block.seen)
            scores, sums = _part(tile, block), total[: block.last - block.first]
            logarithms = stats[head][part, np.newaxis]
            _scores(scale, causal, q[head][part], k[head][seen], scores)
            np.maximum.reduce(scores, 1, out=logarithms, keepdims=True)
            np.subtract(scores, logarithms, out=scores)
            np.exp(scores, out=scores)
            np.add.reduce(scores, 1, out=sums, keepdims=True)
            np.divide(scores, sums, out=scores)
            np.matmul(scores, v[head][seen], out=y[head][part])
            np.log(sums, out=sums)
            np.add(logarithms, sums, out=logarithms)


def attend_back(
    scale: float,
    causal: bool,
    dy: Array,
    q: Array,
    k: Array,
    v: Array,
    y: Array,
    stats: Array,
    dq: Array,
    dk: Array,
    dv: Array,
    tiles: tuple[Array, Array],
    product: Array,
    along: tuple[Array, Array],
) -> None:
    """dq, dk and dv; the last three are scratch. Sums over rows run in the order of the blocks."""
    rows, columns = q.shape[2], k.shape[2]
    dk.fill(0)
    dv.fill(0)
    for head in np.ndindex(q.shape[:2]):
        for block in blocks(rows, columns, causal):
            part, seen = slice(block.first, block.last), slice(block.seen)
            weights, slopes = (_part(tile, block) for tile in tiles)
            products, row_sums = (a[: block.last - block.first] for a in along)
            q_part, dy_part = q[head][part], dy[head][part]
            _scores(scale, causal, q_part, k[head][seen], weights)
            np.subtract(weights, stats[head][part, np.newaxis], out=weights)
            np.exp(weights, out=weights)
            _add_product(weights.T, dy_part, dv[head][seen], product)
            np.multiply(dy_part, y[head][part], out=products)
            np.add.reduce(products, 1, out=row_sums, keepdims=True)
            np.matmul(dy_part, v[head][seen].T, out=slopes)
            np.subtract(slopes, row_sums, out=slopes)
            np.multiply(slopes, weights, out=slopes)
            np.multiply(slopes, scale, out=slopes)
            _add_product(slopes.T, q_part, dk[head][seen], product)
            np.matmul(slopes, k[head][seen], out=dq[head][part])


def _scores(scale: float, causal: bool, q: Array, k: Array, scores: Array) -> None:
    """scale · q · kᵀ, with minus infinity for what a row does not see."""
    np.matmul(q, k.T, out=scores)
    np.multiply(scores, scale, out=scores)
    if causal:
        rows, columns = scores.shape
        for row in range(rows - 1):
            scores[row, columns - rows + row + 1 :] = -np.inf


def _add_product(a: Array, b: Array, result: Array, room: Array) -> None:
    """result += a · b."""
    product = room.reshape(-1)[: result.size].reshape(result.shape)
    np.matmul(a, b, out=product)
    np.add(result, product, out=result)


def _part(tile: Array, block: Block) -> Array:
    """The part of a tile that a block needs, in one piece."""
    shape = (block.last - block.first, block.seen)
    flat: Array = tile.reshape(-1)[: shape[0] * shape[1]]
    return flat.reshape(shape)
