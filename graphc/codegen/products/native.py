"""Matrix products by a library on the CPU: what it takes, and the workspace that it needs.

The library computes in float32, of float32 and bfloat16 operands. It reads matrices in one piece
alone, so others are copied first under every strategy, and how far the rows of an operand lie from
one another decides no bit.
"""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.ir.types import TensorType, align, bfloat16, float32, memory_order, pieces

NATIVE = (float32, bfloat16)

BLOCK = 64
"""Rows and columns are worked on in blocks of at most so many."""

LEAST_BYTES = 64 * 2**10
MOST_BYTES = 4 * 2**20
"""Bounds of the bytes in which blocks of the operands are brought together and summed. Of oneDNN
3.2, on two threads, with AVX-512, no product of 4000 was seen that needs more than `native_bytes`
says; it is at most this, whatever the size of the operands."""


def is_native(node: Node) -> bool:
    """Whether the types of a product are those of the library."""
    return all(value.type.dtype in NATIVE for value in (*node.inputs, node.output))


def native_bytes(node: Node) -> int:
    """The bytes of workspace for a product beside what its NumPy kernel needs."""
    if not is_native(node):
        return 0
    matrices = (value.shape[-2:] for value in (*node.inputs[:2], node.output))
    padded = sum(align(rows, BLOCK) * align(columns, BLOCK) for rows, columns in matrices)
    return LEAST_BYTES + min(MOST_BYTES, padded * float32.itemsize)


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether the library reads an operand where it lies so: in one piece, by rows or by columns,
    with whole matrices one after another, or with the rows of all heads taking turns.

    A bias and a running sum may lie anyhow: the one is copied, the other read by NumPy else.
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
    """The axes from the outermost in memory to the innermost, in the forms that are read."""
    *outer, rows, columns = range(rank)
    orders = [(*outer, rows, columns), (*outer, columns, rows)]
    if outer:
        *first, heads = outer
        orders += [(*first, rows, heads, columns), (*first, columns, heads, rows)]
    return orders
