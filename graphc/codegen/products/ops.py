"""Matrix products: kernels that prepare the output, then BLAS calls."""

from __future__ import annotations

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.elementwise.program import Each
from graphc.codegen.lines.long_lines import lines_kernels
from graphc.codegen.lines.reductions import sums_of
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.products.gemm import gemms, needs_copy
from graphc.codegen.rules import ProductOptions, products_of, strides_of
from graphc.codegen.text.operands import Places, operand
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, contiguous_strides, padded_strides
from graphc.ops.matmul import Linear, Matmul, activation_of
from graphc.ops.product_with_sums import ProductWithSums

PRODUCTS = ("matmul", "linear")
"""Names of the ops that are matrix products."""

GPU_PRODUCTS = (*PRODUCTS, "scaled_matmul", "product_with_sums")
"""The ops that are products in plans for a GPU."""


@products_of(*PRODUCTS, "scaled_matmul")
def _product(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    """Return the calls of a matmul or linear node at these places.

    The bias and the activation of a linear node are the product's epilogue if a BLAS has one.
    Otherwise the bias, or a running sum, is copied into the output first, and the product is added
    to it. A running sum that is already in the output's memory is not copied. Raises `OptionError`
    if an operand `needs_copy`.
    """
    y, added = node.output, node.inputs[2:]
    calls = gemms(node, places, options.tf32, options.epilogues)
    if calls[0].epilogue != "none":
        return NodeCalls(calls)
    moved = [value for value in added if value.shape != y.shape or places[value] != places[y]]
    return NodeCalls((*(copied(v, y, places) for v in moved), *calls, *_activated(node, places)))


@products_of("product_with_sums")
def _product_with_sums(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    """Return the calls of a product whose epilogue sums the columns of its first operand.

    Without the epilogue, kernels sum them. They may need scratch, so the node always has it.
    Raises `OptionError` if an operand `needs_copy`.
    """
    calls = gemms(node, places, options.tf32, options.epilogues)
    sums = lines_kernels(sums_of(node.op.name, node.inputs[0], (0,), node.outputs[1], places))
    if calls[0].epilogue != "none":
        return NodeCalls(calls, sums.scratch)
    return NodeCalls((*calls, *sums.calls), sums.scratch)


@strides_of(Matmul, Linear, ProductWithSums)
def _takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if a product accepts these strides.

    Operands that a BLAS cannot read are copied first, so they may have any strides. Results may
    have padded rows, which they have under every strategy. Sums must be contiguous, as must the
    result that is added to a running sum.
    """
    if strides == contiguous_strides(type):
        return True
    if name in ("sum", "sums") or (
        name in node.op.outputs and getattr(node.attributes, "accumulate", False)
    ):
        return False
    return name not in node.op.outputs or strides == padded_strides(type)


def _activated(node: Node, places: Places) -> tuple[Each, ...]:
    """Return a program that applies the activation of a linear node to its output, if it has
    one."""
    if getattr(node.attributes, "activation", "none") == "none":
        return ()
    op, y = activation_of(node), node.output
    source, target = (operand(name, y, places[y], y.shape) for name in ("x", "y"))
    return (Each(op.name, y.shape, (source,), (target,), op.parsed),)


def unreadable(node: Node, strided: Strided) -> tuple[Value, ...]:
    """Return the matrix operands of a node whose strides no BLAS can read."""
    found = [v for v in node.inputs[:2] if v in strided and needs_copy(v, strided[v])]
    return tuple(dict.fromkeys(found))
