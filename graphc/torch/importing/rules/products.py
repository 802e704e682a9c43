"""Matrix products."""

from __future__ import annotations

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule
from graphc.torch.importing.empty import is_empty
from graphc.torch.importing.rules.elementwise import scaled


def _sum_of_none(call: TorchCall, *names: str) -> Value | None:
    """Return zeros if an operand has no elements, since a sum over none is 0; else None."""
    if any(is_empty(call.get(name)) for name in names):
        return graphc.full(call.shape, 0.0, call.dtype)
    return None


@rule("linear")
def linear(call: TorchCall) -> Value:
    """Return x · weightᵀ + bias; if the weight is a vector, each row gives one number."""
    bias = call.optional("bias")
    zeros = _sum_of_none(call, "input", "weight")
    if zeros is not None:
        return zeros if bias is None else graphc.add(zeros, bias)
    x, weight = call.value("input"), call.value("weight")
    if weight.type.rank == 1:
        y = product(x, weight)
        return y if bias is None else graphc.add(y, bias)
    if x.type.rank == 1:
        y = graphc.affine(graphc.reshape(x, (1, -1)), weight, bias)
        return graphc.reshape(y, y.shape[1:])
    return graphc.affine(x, weight, bias)


@rule("matmul", "mm", "bmm", "dot", "vdot", "mv", "inner")
def matmul(call: TorchCall) -> Value:
    """Return a product of matrices, batches of matrices, or vectors."""
    names = ("other", "mat2", "tensor", "vec")
    other = next(name for name in names if name in call.arguments)
    zeros = _sum_of_none(call, "self", other)
    if zeros is not None:
        return zeros
    if call.operator == "inner" and call.value(other).type.rank > 1:
        raise UnsupportedError("inner products are supported only for vectors")
    return product(call.value("self"), call.value(other))


def product(a: Value, b: Value) -> Value:
    """Return a product by NumPy's rules; a shared matrix is multiplied by all rows at once."""
    if a.type.dtype.kind != "float":
        raise UnsupportedError(f"products must be of floats, got {a.type}")
    left = graphc.reshape(a, (1, *a.shape)) if a.type.rank == 1 else a
    right = graphc.reshape(b, (*b.shape, 1)) if b.type.rank == 1 else b
    if left.type.rank > 2 and right.type.rank == 2:
        rows = graphc.matmul(graphc.reshape(left, (-1, left.shape[-1])), right)
        y = graphc.reshape(rows, (*left.shape[:-1], right.shape[-1]))
    else:
        y = graphc.matmul(left, right)
    shape = list(y.shape)
    if a.type.rank == 1:
        del shape[-2]
    if b.type.rank == 1:
        del shape[-1]
    return graphc.reshape(y, shape)


@rule("addmm", "addmv", "baddbmm")
def add_product(call: TorchCall) -> Value:
    """Return beta · self + alpha · a · b."""
    pairs = {"addmm": ("mat1", "mat2"), "addmv": ("mat", "vec"), "baddbmm": ("batch1", "batch2")}
    names = pairs[call.operator]
    zeros = _sum_of_none(call, *names)
    if zeros is None:
        y = scaled(product(*(call.value(name) for name in names)), call["alpha"])
        assert isinstance(y, Value)
    else:
        y = zeros
    beta = call["beta"]
    if beta == 0:
        return graphc.broadcast_to(y, call.shape)
    return graphc.add(scaled(call.value("self"), beta), y)


@rule("outer", "ger")
def outer(call: TorchCall) -> Value:
    """Return the outer product of two vectors."""
    a, b = call.value("self"), call.value("vec2")
    return graphc.mul(graphc.reshape(a, (-1, 1)), graphc.reshape(b, (1, -1)))


@rule("bilinear")
def bilinear(call: TorchCall) -> Value:
    """Return xᵀ · W · y for each matrix of W, plus a bias."""
    x, y, weight = (call.value(name) for name in ("input1", "input2", "weight"))
    rows, columns = (graphc.reshape(v, (-1, v.shape[-1])) for v in (x, y))
    found = graphc.einsum("ri,oij,rj->ro", rows, weight, columns)
    bias = call.optional("bias")
    return graphc.reshape(found if bias is None else graphc.add(found, bias), call.shape)


@rule("cdist", "_cdist_forward")
def distances(call: TorchCall) -> Value:
    """Return the norm of the difference of each pair of rows."""
    x, y = call.value("x1"), call.value("x2")
    a = graphc.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    b = graphc.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return graphc.norm(graphc.sub(a, b), float(call["p"]), -1)


@rule("einsum")
def einsum(call: TorchCall) -> Value:
    """Return sums of products in Einstein notation."""
    if any(is_empty(each) for each in call["tensors"]):
        return graphc.full(call.shape, 0.0, call.dtype)
    return graphc.einsum(call["equation"], *call.values("tensors"))


@rule("_weight_norm")
def weight_norm(call: TorchCall) -> Value:
    """Return v · g divided by the norm of v along all axes except one."""
    v, g = call.value("v"), call.value("g")
    axes = [i for i in range(v.type.rank) if i != call["dim"]]
    length = graphc.norm(v, 2, axes, True)
    return graphc.mul(v, graphc.div(graphc.reshape(g, length.shape), length))
