"""A product as a kernel, for cases that a BLAS does not support: one thread computes one
element."""

from __future__ import annotations

from graphc.codegen.node_calls import Gemm, Launch, Matrix
from graphc.codegen.products.gemm import COMPUTE_64F
from graphc.codegen.text.access import parameters, starting_at
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import Operand, widest_index
from graphc.codegen.text.scalar import C_TYPES, literal
from graphc.errors import OptionError
from graphc.ir.types import float32, float64


def product_kernel(call: Gemm) -> Launch:
    """Return the launch that computes a product without an epilogue.

    Sums are in float32, or in float64 if `compute` requests it, in the order of the inner axis.
    Raises `OptionError` for a product with an epilogue, or with a beta other than 0 or 1.
    """
    if call.beta not in (0.0, 1.0):
        raise OptionError(f"a product kernel supports beta 0 or 1, got {call.beta}")
    if call.epilogue != "none":
        raise OptionError(
            f"a product kernel supports only the epilogue 'none', got {call.epilogue!r}"
        )
    first = _operand("first", call.first)
    second = _operand("second", call.second)
    c = _operand("c", call.c)
    held = C_TYPES[float64 if call.compute == COMPUTE_64F else float32]
    factor = literal(call.alpha, float64 if call.compute == COMPUTE_64F else float32)
    before = f" + widen({_element(c, 'row', 'column')})" if call.beta else ""
    left = ("inner", "row") if call.transpose_first else ("row", "inner")
    right = ("column", "inner") if call.transpose_second else ("inner", "column")
    factors = [
        Operand(f"{name}_factor", float32, (), buffer)
        for name, buffer in zip(("first", "second"), call.factors or (), strict=False)
    ]
    factor = " * ".join([factor, *(f"{each.name}[0]" for each in factors)])
    body = [
        f"const Index row = item % {call.m}u, rest = item / {call.m}u;",
        f"const Index column = rest % {call.n}u, batch = rest / {call.n}u;",
        f"{held} total = 0;",
        f"for (Index inner = 0; inner < {call.k}u; ++inner)\n"
        f"    total += {held}(widen({_element(first, *left)})) * "
        f"{held}(widen({_element(second, *right)}));",
        f"const {held} scaled = total * {factor};",
        f"narrow(scaled{before}, {_element(c, 'row', 'column')});",
    ]
    items = call.batch * call.m * call.n
    shapes = (
        (call.k, call.m) if call.transpose_first else (call.m, call.k),
        (call.n, call.k) if call.transpose_second else (call.k, call.n),
        (call.m, call.n),
    )
    spans = [
        ((call.batch, *shape), operand)
        for shape, operand in zip(shapes, (first, second, c), strict=True)
    ]
    everything = ((items,), Operand("", c.dtype, (1,)))
    kernel = grid_kernel(
        "product",
        items,
        widest_index([*spans, everything]),
        parameters([first, second, *factors], [c]),
        body,
    )
    buffers = (call.first.buffer, call.second.buffer, *(call.factors or ()), call.c.buffer)
    return over_grid(kernel, buffers, items)


def _operand(name: str, matrix: Matrix) -> Operand:
    """Return the column-major matrices of a batch as an operand with axes (batch, rows,
    columns)."""
    strides = (matrix.stride, 1, matrix.leading)
    return Operand(name, matrix.dtype, strides, matrix.buffer, start=matrix.offset)


def _element(operand: Operand, row: str, column: str) -> str:
    """Return C++ for the element of an operand at a row and column, in the thread's batch entry."""
    stride, _, leading = operand.strides
    at = starting_at(operand, f"batch * {stride}u + {row} + {column} * {leading}u")
    return f"{operand.name}[{at}]"
