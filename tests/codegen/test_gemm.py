"""Matrix products through the binding of cuBLASLt, on a library that does what it documents."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from codegen.on_cpu import aligned, apart, places_of, surroundings

import graphc as g
from graphc.codegen.products.gemm import COMPUTE_32F, COMPUTE_32F_FAST_TF32, gemms
from graphc.errors import OptionError
from graphc.ir.builder import apply
from graphc.ir.types import as_dtype
from graphc.ops.matmul import (
    Linear,
    Matmul,
    MatmulAttributes,
    ScaledMatmul,
    ScaledMatmulAttributes,
)
from graphc.runtime.gpu.cublaslt import CublasError


def node_of(op, arrays, attributes=None):
    inputs = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    node = apply(op, *inputs, attributes=attributes)
    return getattr(node, "node", node), inputs


def run(cublas, node, arrays):
    calls = gemms(node, places_of(arrays))
    for call in calls:
        cublas.run(call, {value: array.ctypes.data for value, array in arrays.items()})
    return calls


def normal(rng, shape, dtype="float64"):
    return aligned(rng.standard_normal(shape).astype(as_dtype(dtype).numpy))


def product(a, b, flags):
    a = a.swapaxes(-1, -2) if flags[0] else a
    b = b.swapaxes(-1, -2) if flags[1] else b
    return a @ b


FLAGS = list(itertools.product((False, True), repeat=2))
BATCHES = [
    ((), (), 1),
    ((3,), (3,), 1),
    ((3,), (), 1),
    ((), (3,), 1),
    ((2, 3), (2, 3), 1),
    ((2, 1), (2, 3), 2),
    ((2, 1), (3,), 2),
    ((2, 1, 3), (4, 1), 8),
]
EXTENTS = [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1)]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(("batch_a", "batch_b", "calls"), BATCHES)
@pytest.mark.parametrize(("rows", "inner", "columns"), EXTENTS)
def test_products(cublas, flags, batch_a, batch_b, calls, rows, inner, columns):
    rng = np.random.default_rng(2)
    a = normal(rng, (*batch_a, *((inner, rows) if flags[0] else (rows, inner))))
    b = normal(rng, (*batch_b, *((columns, inner) if flags[1] else (inner, columns))))
    node, (x, z) = node_of(Matmul, (a, b), MatmulAttributes(*flags))
    y = aligned(np.full(node.output.shape, np.nan))
    assert len(run(cublas, node, {x: a, z: b, node.output: y})) <= calls
    np.testing.assert_allclose(y, product(a, b, flags), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("axis", [1, 2])
def test_slices_and_transposed_views(cublas, flags, axis):
    """Leading dimensions above the row length, and columns in one piece."""
    rng = np.random.default_rng(3)
    a = apart(normal(rng, (2, 4, 4)), axis)
    b = normal(rng, (4, 5, 2) if not flags[1] else (5, 4, 2)).transpose(2, 0, 1)
    b = aligned(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    node, (x, z) = node_of(Matmul, (a, b), MatmulAttributes(*flags))
    y = apart(np.full(node.output.shape, np.nan), axis)
    before = surroundings(y).copy()
    run(cublas, node, {x: a, z: b, node.output: y})
    np.testing.assert_allclose(y, product(a, b, flags), rtol=1e-12, atol=1e-13)
    y[...] = np.nan
    np.testing.assert_array_equal(surroundings(y), before)  # nothing else was written


def test_attention_heads_lie_side_by_side(cublas):
    """Queries (batch, positions, heads, width), read a head at a time without a copy."""
    rng = np.random.default_rng(4)
    q, k = (normal(rng, (2, 5, 3, 4)).transpose(0, 2, 1, 3) for _ in range(2))
    node, (x, z) = node_of(Matmul, (q, k), MatmulAttributes(False, True))
    y = aligned(np.zeros(node.output.shape))
    calls = run(cublas, node, {x: q, z: k, node.output: y})
    assert [call.batch for call in calls] == [3, 3]
    np.testing.assert_allclose(y, q @ k.swapaxes(-1, -2), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("flags", FLAGS)
def test_running_sums(cublas, flags):
    rng = np.random.default_rng(5)
    a = normal(rng, (4, 3) if flags[0] else (3, 4))
    b = normal(rng, (5, 4) if flags[1] else (4, 5))
    y = normal(rng, (3, 5))
    expected = y + product(a, b, flags)
    node, (x, z, s) = node_of(Matmul, (a, b, y), MatmulAttributes(*flags, accumulate=True))
    run(cublas, node, {x: a, z: b, s: y, node.output: y})
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("flags", FLAGS)
def test_factors(cublas, flags, accumulate):
    rng = np.random.default_rng(6)
    a = normal(rng, (4, 3) if flags[0] else (3, 4))
    b = normal(rng, (5, 4) if flags[1] else (4, 5))
    y = normal(rng, (3, 5))
    expected = y * accumulate - 0.3 * product(a, b, flags)
    attributes = ScaledMatmulAttributes(*flags, accumulate=accumulate, alpha=-0.3)
    given = (a, b, y) if accumulate else (a, b)
    node, (x, z, *sums) = node_of(ScaledMatmul, given, attributes)
    run(cublas, node, {x: a, z: b, **dict.fromkeys(sums, y), node.output: y})
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_linear_adds_to_the_bias(cublas):
    rng = np.random.default_rng(6)
    x, weight, bias = normal(rng, (3, 4)), normal(rng, (5, 4)), normal(rng, (5,))
    node, values = node_of(Linear, (x, weight, bias))
    y = aligned(np.broadcast_to(bias, (3, 5)))
    run(cublas, node, {**dict(zip(values, (x, weight, bias), strict=True)), node.output: y})
    np.testing.assert_allclose(y, x @ weight.T + bias, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "wide", "tolerance"),
    [("float32", False, 1e-6), ("float16", False, 1e-3), ("bfloat16", False, 8e-3),
     ("float16", True, 1e-6), ("bfloat16", True, 1e-6)],
)  # fmt: skip
def test_dtypes(cublas, dtype, wide, tolerance):
    rng = np.random.default_rng(7)
    a, b = normal(rng, (6, 7), dtype), normal(rng, (7, 5), dtype)
    node, (x, z) = node_of(Matmul, (a, b), MatmulAttributes(wide=wide))
    y = aligned(np.zeros(node.output.shape, node.output.type.dtype.numpy))
    run(cublas, node, {x: a, z: b, node.output: y})
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("tf32", "compute"), [(False, COMPUTE_32F), (True, COMPUTE_32F_FAST_TF32)])
def test_tf32_is_a_choice(tf32, compute):
    a = b = np.zeros((4, 4), np.float32)
    node, (x, z) = node_of(Matmul, (a, b))
    places = places_of({x: a, z: b, node.output: a})
    assert [call.compute for call in gemms(node, places, tf32)] == [compute]


def test_an_operand_without_unit_stride_is_refused():
    a = np.zeros((4, 8))[:, ::2]
    node, (x, z) = node_of(Matmul, (a, a))
    places = places_of({x: a, z: a, node.output: np.zeros((4, 4))})
    with pytest.raises(OptionError, match="no axis of stride 1"):
        gemms(node, places)


def test_statuses_are_named(cublas):
    rng = np.random.default_rng(8)
    a = normal(rng, (3, 3))
    node, (x, z) = node_of(Matmul, (a, a))
    arrays = {x: a, z: a, node.output: a.copy()}
    (call,) = gemms(node, places_of(arrays), tf32=True)
    addresses = {value: array.ctypes.data for value, array in arrays.items()}
    cublas.run(replace(call, k=2), addresses)
    with pytest.raises(CublasError, match="INVALID_VALUE"):
        cublas.run(replace(call, m=9), addresses)
