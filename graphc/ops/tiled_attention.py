"""Base of the ops of fused attention: types, cost, scratch and calls (Dao et al., 2022).

The arithmetic of their NumPy kernels is in `graphc.ops.cpu.attention_tiles`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.ir.attributes import Between
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder, is_16_bit
from graphc.ir.types import TensorType, bool_, compute_dtype, number_of
from graphc.ops.cpu.attention_tiles import (
    Dropping,
    Sight,
    attend,
    attend_back,
    tile_shape,
)
from graphc.ops.elementwise import float_dtype
from graphc.ops.norm_gradient import check_dtypes

WIDEST_ON_TENSOR_CORES = 128
"""The largest head width for tensor cores: sums of a row must fit the registers of a GPU."""


@dataclass(frozen=True, slots=True)
class AttentionAttributes:
    """The scale of the scores, and the causal masking.

    In causal attention a row attends to no column that belongs to a later row. With `from_first`
    the first row is aligned with the first column, else the last row with the last column.
    """

    scale: Annotated[float, Between()]
    causal: bool
    from_first: bool = False

    def shift(self, rows: int, columns: int) -> int | None:
        """Return s such that row i attends to columns up to i + s; None for all columns."""
        if not self.causal:
            return None
        return 0 if self.from_first else columns - rows


def _check(
    attributes: AttentionAttributes,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: tuple[TensorType, ...],
) -> None:
    fits = (
        q.rank == k.rank == v.rank == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1]
        and q.shape[1] % k.shape[1] == 0
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2]
    )
    if not fits:
        raise ShapeError(
            "q must be (batch, heads, rows, width), k (batch, key heads, columns, width) and v "
            "(batch, key heads, columns, value width), where heads is a multiple of key heads, "
            f"got {q}, {k} and {v}"
        )
    number_of("scale", attributes.scale, compute_dtype(q.dtype))
    if attributes.from_first and not attributes.causal:
        raise OptionError("from_first requires causal attention")
    if attributes.causal and not attributes.from_first and q.shape[2] > k.shape[2]:
        raise ShapeError(
            f"causal attention needs at least as many columns as rows, got {q} and {k}"
        )
    full = (*q.shape[:3], k.shape[2])
    if len(mask) > 1:
        raise ShapeError(f"attention needs at most one mask, got {mask}")
    for type in mask:
        if type.rank != 4 or any(n not in (1, m) for n, m in zip(type.shape, full, strict=True)):
            raise ShapeError(
                f"a mask must be (batch, heads, rows, columns) with the extents {list(full)} or "
                f"1, got {type}"
            )
        if type.dtype not in (bool_, q.dtype, compute_dtype(q.dtype)):
            raise DTypeError(f"a mask must be bool or {q.dtype}, the dtype of q, got {type.dtype}")


class TiledAttention(Op):
    """Base of tiled attention. Its cost counts pairs of a row and a column that the row attends to.

    Inputs may be strided, except that the elements of each row must be contiguous.
    """

    attributes: ClassVar[type[AttentionAttributes]] = AttentionAttributes
    wide_inputs = ("mask",)
    products: int
    """The number of matrix products that a node computes with a (rows x columns) matrix."""
    flops_per_pair = 6
    """Floating point operations per pair of row and column in addition to the matrix products."""

    def has_mask(self, node: Node) -> bool:
        """Return whether the node has a mask."""
        return len(node.inputs) == len(self.inputs)

    def contracts(self, node: Node) -> bool:
        q, _, v = self.operands(node)
        return is_16_bit(q) and max(q.shape[3], v.shape[3]) <= WIDEST_ON_TENSOR_CORES

    def operands(self, node: Node) -> tuple[Value, Value, Value]:
        """Return the operands q, k and v."""
        raise NotImplementedError

    def cost(self, node: Node) -> Cost:
        q, k, v = self.operands(node)
        moved, (batch, heads, rows, width) = super().cost(node), q.shape
        columns = k.shape[2]
        pairs = rows * columns
        if node.attributes.from_first:
            past = max(0, rows - columns)
            pairs = (rows - past) * (rows - past + 1) // 2 + past * columns
        elif node.attributes.causal:
            pairs -= rows * (rows - 1) // 2
        width = (width + v.shape[3]) // 2
        flops = batch * heads * pairs * (2 * width * self.products + self.flops_per_pair)
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def tile_of_bools(self, node: Node) -> tuple[TensorType, ...]:
        """Return the scratch type for the inverse of a bool mask; empty without a bool mask."""
        q, k, _ = self.operands(node)
        if node.inputs[-1].type.dtype != bool_:
            return ()
        return (TensorType(tile_shape(q.shape[2], k.shape[2]), bool_),)

    def forward_types(
        self,
        attributes: AttentionAttributes,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        mask: tuple[TensorType, ...],
    ) -> tuple[TensorType, TensorType]:
        """Return the types of y and stats."""
        dtype = float_dtype(q, k, v)
        _check(attributes, q, k, v, mask)
        y = TensorType((*q.shape[:3], v.shape[3]), dtype)
        return y, TensorType(q.shape[:3], compute_dtype(dtype))

    def backward_types(
        self,
        attributes: AttentionAttributes,
        given: tuple[TensorType, TensorType, TensorType, TensorType, TensorType, TensorType],
        mask: tuple[TensorType, ...],
    ) -> tuple[TensorType, TensorType, TensorType]:
        """Return the types of dq, dk and dv, from those of dy, q, k, v, y and stats."""
        dy, q, k, v, y, stats = given
        float_dtype(dy, q, k, v, y)
        _check(attributes, q, k, v, mask)
        if dy != y or y.shape != (*q.shape[:3], v.shape[3]):
            raise ShapeError(
                f"dy and y must be (batch, heads, rows, value width), got {dy} and {y}"
            )
        if stats.shape != q.shape[:3]:
            raise ShapeError(f"stats must have one number per row of {q}, got {stats}")
        check_dtypes(q, stats)
        return q, k, v

    def forward_scratch(self, node: Node) -> tuple[TensorType, ...]:
        """Return the scratch types of the forward pass.

        They are a tile of scores, and a number per row of the tile. With a mask, a second number
        per row follows, then a tile for the inverse of a bool mask.
        """
        q, k, _ = self.operands(node)
        rows, columns = tile_shape(q.shape[2], k.shape[2])
        tile, number = q.type.with_shape((rows, columns)), q.type.with_shape((rows, 1))
        if not self.has_mask(node):
            return tile, number
        return tile, number, number, *self.tile_of_bools(node)

    def backward_scratch(self, node: Node) -> tuple[TensorType, ...]:
        """Return the scratch types of the backward pass.

        They are two tiles (rows x columns), one term of dk or dv, the products dy · y and their sum
        for each row, and a tile for the inverse of a bool mask.
        """
        q, k, v = self.operands(node)
        rows, columns = tile_shape(q.shape[2], k.shape[2])
        widths = q.shape[3], v.shape[3]
        shapes = (
            (rows, columns), (rows, columns), (columns, max(widths)), (rows, widths[1]), (rows, 1)
        )  # fmt: skip
        return *map(q.type.with_shape, shapes), *self.tile_of_bools(node)

    def record_forward(
        self,
        record: Recorder,
        node: Node,
        operands: tuple[Array, Array, Array, Array, Array],
        mask: Sequence[Array],
        scratch: Sequence[Array],
        dropping: Dropping | None = None,
    ) -> None:
        """Record the call that computes y and stats; `operands` are q, k, v, y and stats."""
        tile, total, *workspace = scratch
        sight = self._sight(
            node, mask, workspace[1:], workspace[0] if workspace else None, dropping
        )
        record(functools.partial(attend, sight, *operands, tile, total))

    def record_backward(
        self,
        record: Recorder,
        node: Node,
        operands: tuple[Array, Array, Array, Array, Array, Array, Array, Array, Array],
        mask: Sequence[Array],
        scratch: Sequence[Array],
        dropping: Dropping | None = None,
    ) -> None:
        """Record the call that computes dq, dk and dv.

        The operands are dy, q, k, v, y, stats, dq, dk and dv.
        """
        weights, slopes, product, products, sums, *hidden = scratch
        sight = self._sight(node, mask, hidden, None, dropping)
        call = functools.partial(attend_back, sight, *operands)
        record(call, (weights, slopes), product, (products, sums))

    def _sight(
        self,
        node: Node,
        mask: Sequence[Array],
        hidden: Sequence[Array],
        met: Array | None,
        dropping: Dropping | None,
    ) -> Sight:
        """Return the columns that rows attend to.

        `mask`, `hidden` and `met` may be empty or None.
        """
        q, k, _ = self.operands(node)
        a, (rows, columns) = node.attributes, (q.shape[2], k.shape[2])
        shift = a.shift(rows, columns)
        if not mask:
            return Sight(a.scale, shift, dropping=dropping)
        shown = np.broadcast_to(mask[0], (*q.shape[:3], columns))
        return Sight(a.scale, shift, shown, hidden[0] if hidden else None, met, dropping)
