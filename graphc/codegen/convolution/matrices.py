"""Tensors of a convolution as BLAS matrices: channels by pixels, and filters by taps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphc.codegen.convolution.unfold import Columns
from graphc.codegen.node_calls import Buffer, Gemm, Matrix
from graphc.codegen.products.gemm import stored
from graphc.codegen.text.operands import Operand
from graphc.ir.types import DType


@dataclass(frozen=True, slots=True)
class View:
    """Matrices in a buffer, one for each image and group, all with the same strides. Strides and
    the offset count elements."""

    buffer: Buffer
    dtype: DType
    below: int
    """The stride from one row to the next."""
    right: int
    """The stride from one column to the next."""
    image: int
    group: int
    offset: int = 0

    @property
    def transposed(self) -> View:
        """The transposed matrices."""
        return replace(self, below=self.right, right=self.below)

    def moved(self, elements: int) -> View:
        """Return the same matrices with `elements` added to the offset."""
        return replace(self, offset=self.offset + elements)

    def split(self, columns: int) -> View:
        """Return one matrix for each group of `columns` columns, instead of one for each image."""
        return replace(self, image=columns * self.right)

    def is_readable(self, rows: int, columns: int) -> bool:
        """Return true if a BLAS accepts matrices of this size with these strides."""
        return stored(rows, columns, self.below, self.right) is not None

    def joins(self, pixels: int) -> bool:
        """Return true if the columns of successive images of `pixels` pixels form one larger
        matrix."""
        return self.image == pixels * self.right


def merged(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of adjacent axes when merged into one axis, or None if they have no common
    stride."""
    axes = [(n, s) for n, s in zip(extents, strides, strict=True) if n > 1]
    if any(axes[i][1] != axes[i + 1][0] * axes[i + 1][1] for i in range(len(axes) - 1)):
        return None
    return axes[-1][1] if axes else 1


def maps_of(tensor: Operand, shape: tuple[int, ...], groups: int) -> View | None:
    """View feature maps (batch, channels, height, width) as matrices of channels by pixels. Returns
    None if pixels have no common stride."""
    pixel = merged(shape[2:], tensor.strides[2:])
    if pixel is None or tensor.buffer is None:
        return None
    image, channel = tensor.strides[:2]
    if shape[2:] == (1, 1):
        pixel = image
    group = shape[1] // groups * channel
    return View(tensor.buffer, tensor.dtype, channel, pixel, image, group)


def filters_of(
    w: Operand, shape: tuple[int, ...], groups: int, channels_last: bool
) -> tuple[View, bool] | None:
    """View filters (filters, channels, rows, columns) as matrices of filters by taps; also return
    true if channels are last among taps. The order given by `channels_last` is tried first. Returns
    None if no BLAS accepts the matrix.
    """
    k, c, r, s = w.strides
    orders = {
        False: merged(shape[1:], (c, r, s)),
        True: merged((*shape[2:], shape[1]), (r, s, c)),
    }
    filters, taps = shape[0] // groups, shape[1] * shape[2] * shape[3]
    assert w.buffer is not None
    for order in (channels_last, not channels_last):
        tap = orders[order]
        if tap is not None:
            view = View(w.buffer, w.dtype, k, tap, 0, filters * k)
            if view.is_readable(filters, taps):
                return view, order
    return None


def taps_of(columns: Columns, matrix: Operand) -> View:
    """View an unfolded input as matrices of taps by pixels."""
    strides = columns.strides
    tap = min(strides[name] for name in "crs")
    pixel = strides["q"] if columns.rows * columns.geometry.y[3] > 1 else strides["n"]
    assert matrix.buffer is not None
    return View(matrix.buffer, matrix.dtype, tap, pixel, strides["n"], strides["g"])


def multiply(
    extents: tuple[int, int, int],
    a: View,
    b: View,
    c: View,
    batch: tuple[int, int],
    beta: float,
    compute: int,
) -> list[Gemm]:
    """Return the calls that compute c = a · b + beta · c with c (m, n) and a (m, k), per image and
    group. A BLAS must accept all matrices. The longer axis of `batch` is the batch of a call, and
    the calls loop over the other axis.
    """
    m, n, k = extents
    (a_lies, a_leading), (b_lies, b_leading), (c_lies, c_leading) = (
        _stored(rows, columns, view) for rows, columns, view in ((m, k, a), (k, n, b), (m, n, c))
    )
    leading = {id(a): a_leading, id(b): b_leading}
    # A BLAS needs columns in one piece. A row-major result is its transpose, of swapped operands.
    first, second = (a, b) if c_lies else (b, a)
    flags = (not a_lies, not b_lies) if c_lies else (b_lies, a_lies)

    return [
        Gemm(
            *flags,
            *((m, n) if c_lies else (n, m)),
            k,
            _matrix(first, leading[id(first)], batch, step),
            _matrix(second, leading[id(second)], batch, step),
            _matrix(c, c_leading, batch, step),
            beta,
            max(batch),
            compute,
            of=math.prod(batch),
        )
        for step in range(min(batch))
    ]


def _matrix(view: View, leading: int, batch: tuple[int, int], step: int) -> Matrix:
    """Return an operand of BLAS call number `step`, for a batch of (images, groups)."""
    by_images = batch[0] >= batch[1]
    outer, inner = (view.group, view.image) if by_images else (view.image, view.group)
    stride = inner if max(batch) > 1 else 0
    return Matrix(view.buffer, view.dtype, view.offset + step * outer, leading, stride)


def _stored(rows: int, columns: int, view: View) -> tuple[bool, int]:
    found = stored(rows, columns, view.below, view.right)
    assert found is not None
    return found
