"""The workspace of a node on a GPU, known before memory is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.codegen.cudnn_attention import attention_workspace_bytes
from graphc.codegen.lowering import calls_of, is_generated
from graphc.codegen.memo import Memo
from graphc.codegen.node_calls import Gemm
from graphc.codegen.products.ops import GPU_PRODUCTS, unreadable
from graphc.codegen.strides import copied_first
from graphc.codegen.text.operands import Place, in_one_piece
from graphc.devices.device import ALIGNMENT, Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, align, uint8
from graphc.ops.elementwise import Elementwise

PARTS = 16
"""Number of parts into which a BLAS may always split a product's inner extent (split-K).

A BLAS does so for small outputs; a large output has enough blocks for a device without it.
"""

TILE, TILES, DEPTH = 128, 256, 1024
"""A BLAS may use more parts until there are `TILES` blocks of `TILE` by `TILE` elements, enough for
a large GPU. Each part must sum at least `DEPTH` products.

On an H200, 64 by 147 sums of 112,896 products of bfloat16 took 20.9 ms with a workspace for 16
parts and 0.05 ms with one for 175.
"""

PARTIAL_BYTES = 4
"""Bytes of one partial sum of products of 16-bit or float32 operands."""

LEAST_LIBRARY_BYTES = 64 * 2**10
"""Minimum bytes of workspace for a BLAS; cuBLAS requests 16 KiB or more."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A node's workspace on a GPU.

    It has copies of inputs that are made contiguous first, the scratch of the node's calls, and
    bytes for a library.
    """

    copies: tuple[Value, ...]
    scratch: tuple[TensorType, ...]
    library_bytes: int

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The whole workspace as tensors: copies, scratch, then bytes for a library."""
        library = (TensorType((self.library_bytes,), uint8),) if self.library_bytes else ()
        return (*(value.type for value in self.copies), *self.scratch, *library)


def gpu_workspace(node: Node, device: Device, strided: Strided) -> Workspace:
    """Return the workspace of a node whose outputs are not views; 16-bit operands are not copied to
    float32."""
    if isinstance(node.op, Elementwise) or not is_generated(node.op):
        return Workspace(copied_first(node, strided), (), 0)
    copies = _copies(node, strided)
    values = dict.fromkeys((*node.inputs, *node.outputs))
    lying = {v: strided[v] for v in values if v in strided and v not in copies}
    scratch, wanted = _needs(node, lying)
    library_bytes = attention_workspace_bytes(node, device) or min(
        wanted, device.blas_workspace_bytes
    )
    return Workspace(copies, scratch, library_bytes)


def _copies(node: Node, strided: Strided) -> tuple[Value, ...]:
    """Return the inputs that are made contiguous before the node's kernels read them."""
    copies = copied_first(node, strided)
    if node.op.name in GPU_PRODUCTS:
        return tuple(dict.fromkeys((*copies, *unreadable(node, strided))))
    return copies


def _needs(node: Node, strided: Strided) -> tuple[tuple[TensorType, ...], int]:
    """Return the scratch of a node's calls, and the bytes of workspace that a BLAS may use for
    them."""
    values = (*node.inputs, *node.outputs)
    places = {v: Place(0, strided[v]) if v in strided else in_one_piece(v.type) for v in values}
    lying = tuple((value.type, places[value].strides) for value in values)
    return _KNOWN.get(
        (node.op.name, repr(node.attributes), lying), lambda: _worked_out(node, places)
    )


_KNOWN: Memo[tuple[tuple[TensorType, ...], int]] = Memo()


def _worked_out(node: Node, places: Mapping[Value, Place]) -> tuple[tuple[TensorType, ...], int]:
    found = calls_of(node, places)
    return found.scratch, max(
        (product_workspace_bytes(c) for c in found.calls if isinstance(c, Gemm)), default=0
    )


def product_workspace_bytes(product: Gemm) -> int:
    """Return the bytes that a BLAS may use for a product, for partial sums over its inner extent.

    The result does not depend on the division of a node's products into calls, because a BLAS
    chooses its algorithm by this size.
    """
    batches, m, n = product.all_batches, product.m, product.n
    sums = batches * m * n * max(PARTIAL_BYTES, product.c.dtype.itemsize)
    tiles = batches * -(-m // TILE) * -(-n // TILE)
    parts = max(PARTS, min(TILES // tiles, product.k // DEPTH))
    return LEAST_LIBRARY_BYTES + parts * align(sums, ALIGNMENT)
