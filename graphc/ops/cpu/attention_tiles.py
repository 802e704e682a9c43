"""Fused attention on the CPU, one block of query rows at a time.

At most one tile of the (rows x columns) scores is in memory. Memory grows with the number of
positions, not with its square (Rabe and Staats, 2021; Dao et al., 2022). A tile has all columns
that its rows attend to. GPU kernels divide columns, too, and must rescale partial sums; this is not
needed here. The gradient recomputes each tile from the log-sum-exps of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphc.ir.op import Array
from graphc.ops.cpu.blas import one_blas_thread

TILE_ROWS = 128
TILE_ELEMENTS = 2**18
"""The most elements of a tile, unless a single row has more."""

LATER = np.triu(np.ones((TILE_ROWS, TILE_ROWS), np.bool_))
"""True at columns that rows do not attend to, from the first of them on in the first row."""


def tile_shape(rows: int, columns: int) -> tuple[int, int]:
    """Return the rows and columns of the largest tile."""
    return max(1, min(rows, TILE_ROWS, TILE_ELEMENTS // columns)), columns


class Block(NamedTuple):
    """Query rows `[first, last)`, which attend only to columns in `[0, seen)`."""

    first: int
    last: int
    seen: int


@dataclass(frozen=True, slots=True)
class Dropping:
    """Dropout of attention weights: dropped ones become 0, the others are multiplied by `factor`.

    All weights have the shape `shape`, (batch, heads, rows, columns), and are numbered in row-major
    order. `draw(first, dropped)` fills the array `dropped` with the dropout mask of the weights
    from number `first` on. `workspace` is scratch for the bools of a tile.
    """

    draw: Callable[[int, Array], None]
    factor: float
    shape: tuple[int, ...]
    workspace: Array

    def of(self, head: tuple[int, ...], block: Block) -> Array:
        """Return the dropout mask of a block, true for dropped weights."""
        _, heads, rows, columns = self.shape
        count = block.last - block.first
        dropped = self.workspace.reshape(-1)[: count * columns]
        number = head[0] * heads + head[1]
        self.draw((number * rows + block.first) * columns, dropped)
        whole: Array = dropped.reshape(count, columns)
        return whole[:, : block.seen]


@dataclass(frozen=True, slots=True)
class Sight:
    """The columns that each row attends to, the factor `scale` of the scores, and dropout.

    Row i attends to columns up to i + `shift`, at least 0, or to all if that is None. A bool `mask`
    (batch, heads, rows, columns) restricts these to columns where it is true. A float mask is added
    to the scores. `hidden` is scratch for a tile of bools, `met` for one number per row of a tile.
    `dropping` is None without dropout.
    """

    scale: float
    shift: int | None
    mask: Array | None = None
    hidden: Array | None = None
    met: Array | None = None
    dropping: Dropping | None = None

    def blocks(self, rows: int, columns: int) -> Iterator[Block]:
        """Yield blocks of all query rows in order."""
        step, _ = tile_shape(rows, columns)
        for first in range(0, rows, step):
            last = min(first + step, rows)
            seen = columns if self.shift is None else min(last + self.shift, columns)
            yield Block(first, last, seen)

    def scores(
        self, head: tuple[int, ...], block: Block, q: Array, k: Array, scores: Array
    ) -> None:
        """Compute scale · q · kᵀ of a block, with -inf at columns that a row does not attend to."""
        np.matmul(q, k.T, out=scores)
        np.multiply(scores, self.scale, out=scores)
        if self.mask is not None:
            mask = self.mask[head][block.first : block.last, : block.seen]
            if self.hidden is None:
                np.add(scores, mask, out=scores)
            else:
                hidden = _part(self.hidden, block)
                np.logical_not(mask, out=hidden)
                np.copyto(scores, -np.inf, where=hidden)
        if self.shift is not None:
            # The first row of a block attends to no column from `later` on, the next to one more.
            later = block.first + self.shift + 1
            if later < block.seen:
                hidden = LATER[: block.last - block.first, : block.seen - later]
                np.copyto(scores[:, later:], -np.inf, where=hidden)

    def dropped(self, head: tuple[int, ...], block: Block) -> Array | None:
        """Return the dropout mask of a block, or None without dropout."""
        return None if self.dropping is None else self.dropping.of(head, block)

    def drop(self, dropped: Array | None, numbers: Array) -> None:
        """Apply the dropout mask `dropped` to `numbers`: a block's weights, or their gradients."""
        if self.dropping is not None and dropped is not None:
            np.multiply(numbers, self.dropping.factor, out=numbers)
            np.copyto(numbers, 0, where=dropped)


@one_blas_thread()
def attend(
    sight: Sight, q: Array, k: Array, v: Array, y: Array, stats: Array, tile: Array, total: Array
) -> None:
    """Compute y = softmax(scale · q · kᵀ) · v, and the log-sum-exp of each row as `stats`.

    `tile` and `total` are scratch. If a row attends to no column, its y and its log-sum-exp are 0.
    """
    rows, columns = q.shape[2], k.shape[2]
    shared = q.shape[1] // k.shape[1]
    for head in np.ndindex(q.shape[:2]):
        own = head[0], head[1] // shared
        for block in sight.blocks(rows, columns):
            part, seen = slice(block.first, block.last), slice(block.seen)
            scores, sums = _part(tile, block), total[: block.last - block.first]
            logarithms = stats[head][part, np.newaxis]
            sight.scores(head, block, q[head][part], k[own][seen], scores)
            np.maximum.reduce(scores, 1, out=logarithms, keepdims=True)
            if sight.mask is not None:
                np.maximum(logarithms, np.finfo(stats.dtype).min, out=logarithms)
            np.subtract(scores, logarithms, out=scores)
            np.exp(scores, out=scores)
            np.add.reduce(scores, 1, out=sums, keepdims=True)
            if sight.met is not None:
                # The sum is at least 1 if a row attends to any column. Otherwise its results are 0.
                met = sight.met[: block.last - block.first]
                np.minimum(sums, 1, out=met)
                np.multiply(logarithms, met, out=logarithms)
                np.maximum(sums, 1, out=sums)
            np.divide(scores, sums, out=scores)
            sight.drop(sight.dropped(head, block), scores)
            np.matmul(scores, v[own][seen], out=y[head][part])
            np.log(sums, out=sums)
            np.add(logarithms, sums, out=logarithms)


@one_blas_thread()
def attend_back(
    sight: Sight,
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
    """Compute dq, dk and dv; `tiles`, `product` and `along` are scratch.

    Terms of dk and dv are added in the order of the query heads that share keys, then of the
    blocks.
    """
    rows, columns = q.shape[2], k.shape[2]
    shared = q.shape[1] // k.shape[1]
    dk.fill(0)
    dv.fill(0)
    for head in np.ndindex(q.shape[:2]):
        own = head[0], head[1] // shared
        for block in sight.blocks(rows, columns):
            part, seen = slice(block.first, block.last), slice(block.seen)
            weights, slopes = (_part(tile, block) for tile in tiles)
            products, row_sums = (a[: block.last - block.first] for a in along)
            q_part, dy_part = q[head][part], dy[head][part]
            sight.scores(head, block, q_part, k[own][seen], weights)
            np.subtract(weights, stats[head][part, np.newaxis], out=weights)
            np.exp(weights, out=weights)
            np.multiply(dy_part, y[head][part], out=products)
            np.add.reduce(products, 1, out=row_sums, keepdims=True)
            np.matmul(dy_part, v[own][seen].T, out=slopes)
            dropped = sight.dropped(head, block)
            sight.drop(dropped, slopes)
            np.subtract(slopes, row_sums, out=slopes)
            np.multiply(slopes, weights, out=slopes)
            np.multiply(slopes, sight.scale, out=slopes)
            sight.drop(dropped, weights)
            _add_product(weights.T, dy_part, dv[own][seen], product)
            _add_product(slopes.T, q_part, dk[own][seen], product)
            np.matmul(slopes, k[own][seen], out=dq[head][part])


def _add_product(a: Array, b: Array, result: Array, workspace: Array) -> None:
    """Compute result += a · b."""
    product = workspace.reshape(-1)[: result.size].reshape(result.shape)
    np.matmul(a, b, out=product)
    np.add(result, product, out=result)


def _part(tile: Array, block: Block) -> Array:
    """Return the part of a tile that a block needs, as a contiguous array."""
    shape = (block.last - block.first, block.seen)
    flat: Array = tile.reshape(-1)[: shape[0] * shape[1]]
    return flat.reshape(shape)
