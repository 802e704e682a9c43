"""Import of matrix products, einsum and determinants."""

from __future__ import annotations

import math

import numpy as np

import graphc
from graphc.importing.determinants import determinant
from graphc.importing.weights import Weight, empty
from graphc.ir.graph import Value
from graphc.onnx.calls import OnnxCall, Operand, rule
from graphc.onnx.rules.integers import through_floats


@rule("MatMul")
def matmul(call: OnnxCall) -> Operand:
    """Import MatMul of matrices, batches of matrices or vectors, by NumPy's rules."""
    nothing = _sum_of_none(call)
    if nothing is not None:
        return nothing
    a, b = call.value(0), call.value(1)
    left = graphc.reshape(a, (1, *a.shape)) if a.type.rank == 1 else a
    right = graphc.reshape(b, (*b.shape, 1)) if b.type.rank == 1 else b
    y = product(left, right)
    shape = list(y.shape)
    if b.type.rank == 1:
        shape = shape[:-1]
    if a.type.rank == 1:
        shape = shape[:-1] if b.type.rank == 1 else shape[:-2] + shape[-1:]
    return graphc.reshape(y, shape)


def _sum_of_none(
    call: OnnxCall, transpose_a: bool = False, transpose_b: bool = False
) -> Operand | None:
    """Return the product if an operand has no elements, else None.

    The product is then all zeros, or has no elements itself.
    """
    if math.prod(call.shape(0)) and math.prod(call.shape(1)):
        return None
    a, b = (np.broadcast_to(False, call.shape(i)) for i in (0, 1))
    shape = np.matmul(a.T if transpose_a else a, b.T if transpose_b else b).shape
    if not math.prod(shape):
        return empty(shape, call.dtype(0))
    return graphc.full(shape, 0.0, call.dtype(0))


def product(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Multiply batches of matrices; a shared right matrix is multiplied by all rows at once."""
    if a.type.dtype.kind != "float":
        return through_floats(lambda x, y: product(x, y, transpose_a, transpose_b), a, b)
    if a.type.rank > 2 and b.type.rank == 2 and not transpose_a:
        rows = graphc.reshape(a, (-1, a.shape[-1]))
        y = graphc.matmul(rows, b, False, transpose_b)
        return graphc.reshape(y, (*a.shape[:-1], y.shape[-1]))
    return graphc.matmul(a, b, transpose_a, transpose_b)


@rule("Gemm")
def gemm(call: OnnxCall) -> Operand:
    """Import Gemm: alpha · op(a) · op(b) + beta · c."""
    turned = bool(call.attribute("transA", 0)), bool(call.attribute("transB", 0))
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    y = _sum_of_none(call, *turned)
    if isinstance(y, Weight):
        return y
    if y is None:
        a, b = call.value(0), call.value(1)
        if is_linear(call, turned, alpha, beta):
            return graphc.affine(a, b, call.value(2))
        y = product(a, b, *turned)
        if alpha != 1:
            y = graphc.mul(y, alpha)
    if not call.has(2) or beta == 0:
        return y
    c = call.value(2)
    return graphc.add(y, c if beta == 1 else graphc.mul(c, beta))


def is_linear(call: OnnxCall, turned: tuple[bool, bool], alpha: float, beta: float) -> bool:
    """Return True if a Gemm can be imported as a linear layer, whose kernel also adds the bias."""
    return (
        turned == (False, True)
        and alpha == beta == 1
        and call.has(2)
        and call.shape(2) == call.shape(1)[:1]
        and call.dtype(0).kind == "float"
    )


@rule("Einsum")
def einsum(call: OnnxCall) -> Value:
    """Import Einsum."""
    return graphc.einsum(call.required("equation"), *call.values)


@rule("Det")
def det(call: OnnxCall) -> Value:
    """Import determinants of small matrices."""
    return determinant(call.value(0))
