"""Products with epilogues through the cuBLASLt binding, on a stand-in for the library."""

import ctypes
import itertools
from dataclasses import replace

import numpy as np
import pytest
from codegen.fake_cublas import StandIn
from codegen.on_cpu import Library, aligned, apart, generated, kernels_in, places_of, surroundings

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Gemm, Launch
from graphc.codegen.products.gemm import gemms
from graphc.ir.builder import apply
from graphc.ir.types import as_dtype
from graphc.ops.matmul import Linear, LinearAttributes, Matmul, MatmulAttributes
from graphc.ops.product_with_sums import ProductWithSums, ProductWithSumsAttributes
from graphc.runtime.gpu.cublaslt import CublasError, Heuristic

TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def normal(rng, shape, dtype):
    return aligned(rng.standard_normal(shape).astype(as_dtype(dtype).numpy))


def node_of(op, arrays, attributes=None):
    inputs = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    node = apply(op, *inputs, attributes=attributes)
    y = np.full(node.output.shape, np.nan).astype(node.output.type.dtype.numpy)
    return node, {**dict(zip(inputs, arrays, strict=True)), node.output: aligned(y)}


def addresses_of(arrays):
    return {value: array.ctypes.data for value, array in arrays.items()}


def activated(x, activation):
    if activation == "gelu":
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x


def expected_of(x, weight, bias, activation):
    x, weight, bias = (array.astype(np.float64) for array in (x, weight, bias))
    return activated(x @ weight.T + bias, activation)


ACTIVATIONS = ("none", "gelu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1)])
def test_linear_is_one_call(cublas, activation, dtype, rows, inner, columns):
    rng = np.random.default_rng(2)
    operands = [normal(rng, s, dtype) for s in ((rows, inner), (columns, inner), (columns,))]
    node, arrays = node_of(Linear, operands, LinearAttributes(activation))
    (call,) = generated(node, arrays).calls
    assert call.beta == 0  # y may hold anything, here NaN
    assert call.bias is node.inputs[2]
    cublas.run(call, addresses_of(arrays))
    tolerance = TOLERANCE[dtype]
    expected = expected_of(*operands, activation)
    found = arrays[node.output].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert (found < 0).any()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_leading_dimensions(cublas, axis, activation):
    rng = np.random.default_rng(3)
    operands = [normal(rng, s, "float32") for s in ((6, 7), (5, 7), (5,))]
    expected = expected_of(*operands, activation)
    operands[:2] = [apart(array, 1) if axis else aligned(array.T).T for array in operands[:2]]
    node, arrays = node_of(Linear, operands, LinearAttributes(activation))
    arrays[node.output] = apart(arrays[node.output], 1)
    before = surroundings(arrays[node.output]).copy()
    (call,) = generated(node, arrays).calls
    cublas.run(call, addresses_of(arrays))
    np.testing.assert_allclose(arrays[node.output], expected, rtol=2e-6, atol=2e-6)
    arrays[node.output][...] = np.nan
    np.testing.assert_array_equal(surroundings(arrays[node.output]), before)


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_products_without_an_epilogue(cublas, flags, batch, dtype):
    """The binding knows all that cuBLAS does: transposes, batches, running sums."""
    rng = np.random.default_rng(4)
    a = normal(rng, (*batch, *((4, 3) if flags[0] else (3, 4))), dtype)
    b = normal(rng, (*batch, *((5, 4) if flags[1] else (4, 5))), dtype)
    node, arrays = node_of(Matmul, (a, b), MatmulAttributes(*flags))
    for call in gemms(node, places_of(arrays)):
        cublas.run(call, addresses_of(arrays))
    left, right = (x.astype(np.float64) for x in (a, b))
    left = left.swapaxes(-1, -2) if flags[0] else left
    right = right.swapaxes(-1, -2) if flags[1] else right
    found = arrays[node.output].astype(np.float64)
    np.testing.assert_allclose(found, left @ right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    arrays[node.output][...] = 1
    for call in gemms(node, places_of(arrays)):
        cublas.run(replace(call, beta=1.0), addresses_of(arrays))
    found = arrays[node.output].astype(np.float64)
    reach = 2 * TOLERANCE[dtype]
    np.testing.assert_allclose(found, left @ right + 1, rtol=reach, atol=reach)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("gap", [0, 1])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(3, 4, 5), (1, 4, 5), (7, 1, 5), (600, 2, 1)]
)
def test_sums_of_an_operand_are_an_epilogue(cublas, dtype, wide, gap, rows, outputs, inputs):
    """Kernels, which sum without the epilogue, have the same scratch."""
    rng = np.random.default_rng(7)
    dy, x = (normal(rng, (rows, n), dtype) for n in (outputs, inputs))
    if gap:
        dy = apart(dy, 1)
    given = [g.input(name, a.shape, a.dtype) for name, a in (("dy", dy), ("x", x))]
    node = apply(ProductWithSums, *given, attributes=ProductWithSumsAttributes(wide))
    arrays = dict(zip(given, (dy, x), strict=True)) | {
        value: aligned(np.full(value.shape, np.nan).astype(value.type.dtype.numpy))
        for value in node.outputs
    }
    found = generated(node, arrays)
    (call,) = found.calls
    assert call.epilogue == "sums"
    cublas.run(call, addresses_of(arrays))
    exact, tolerance = dy.astype(np.float64), TOLERANCE["float32" if wide else dtype]
    expected = exact.T @ x.astype(np.float64), exact.sum(0)
    for value, want in zip(node.outputs, expected, strict=True):
        have = arrays[value].astype(np.float64)
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance * rows**0.5)
    apart_calls = calls_of(node, places_of(arrays), epilogues=False)
    assert apart_calls.scratch == found.scratch
    assert [call.epilogue for call in apart_calls.calls if isinstance(call, Gemm)] == ["none"]
    assert any(isinstance(call, Launch) for call in apart_calls.calls)


def test_an_activation_without_a_bias(cublas):
    rng = np.random.default_rng(5)
    a, b = normal(rng, (3, 4), "float32"), normal(rng, (4, 5), "float32")
    node, arrays = node_of(Matmul, (a, b))
    (call,) = gemms(node, places_of(arrays))
    cublas.run(replace(call, epilogue="gelu"), addresses_of(arrays))
    expected = activated(a.astype(np.float64) @ b, "gelu")
    np.testing.assert_allclose(arrays[node.output], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "step"), [("float64", 1), ("float32", 2)])
def test_products_outside_cublaslts_scope_are_computed_by_kernels(activation, dtype, step):
    """float64, and a bias with gaps, are copied into y; the activation is a kernel behind."""
    rng = np.random.default_rng(6)
    x, weight = normal(rng, (3, 4), dtype), normal(rng, (5, 4), dtype)
    bias = normal(rng, (5 * step,), dtype)[::step]
    node, arrays = node_of(Linear, (x, weight, bias), LinearAttributes(activation))
    found = generated(node, arrays)
    kinds = [Launch, Gemm] + [Launch] * (activation != "none")
    assert [type(call) for call in found.calls] == kinds
    assert [call.epilogue for call in found.calls if isinstance(call, Gemm)] == ["none"]
    library = Library(kernels_in([found]))
    library.run(found, arrays, cublas=StandIn())
    expected = expected_of(x, weight, bias, activation)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(arrays[node.output], expected, rtol=tolerance, atol=tolerance)


def linear_call(rng, shift=0):
    operands = [normal(rng, s, "float32") for s in ((3, 4), (5, 4), (5,))]
    if shift:
        room = aligned(np.zeros(5 + shift, np.float32))
        room[shift:] = operands[2]
        operands[2] = room[shift:]
    node, arrays = node_of(Linear, operands)
    (call,) = generated(node, arrays).calls
    return call, arrays, node, operands


@pytest.mark.parametrize("shift", [1, 2])
def test_operands_need_no_more_than_their_own_alignment(cublas, shift):
    """The stand-in refuses a place that is less aligned than was promised."""
    call, arrays, node, operands = linear_call(np.random.default_rng(7), shift)
    cublas.run(call, addresses_of(arrays))
    expected = expected_of(*operands, "none")
    np.testing.assert_allclose(arrays[node.output], expected, rtol=2e-6, atol=2e-6)


def test_a_product_runs_again_without_another_choice(cublas):
    call, arrays, node, (x, weight, bias) = linear_call(np.random.default_rng(8))
    space = cublas.workspace.ctypes.data
    with cublas.bind(call, addresses_of(arrays), space, 512) as product:
        assert cublas.live == 4
        product.run(0)
        first = arrays[node.output].copy()
        x += 1
        product.run(0)
    assert cublas.live == 0
    np.testing.assert_allclose(
        arrays[node.output], expected_of(x, weight, bias, "none"), rtol=2e-6, atol=2e-6
    )
    assert (first != arrays[node.output]).any()


def test_a_workspace_that_is_too_small_is_refused(cublas):
    call, arrays, *_ = linear_call(np.random.default_rng(9))
    with pytest.raises(CublasError, match="within a workspace of 100 bytes"):
        cublas.run(call, addresses_of(arrays), 100)
    assert cublas.live == 0
    with pytest.raises(CublasError, match="aligned to 256"):
        cublas.bind(call, addresses_of(arrays), 128, 1024)


def test_only_the_workspace_is_written_beside_the_output(cublas):
    call, arrays, *_ = linear_call(np.random.default_rng(10))
    cublas.workspace[:] = 7
    cublas.run(call, addresses_of(arrays), 512)
    assert (cublas.workspace[512:] == 7).all()


@pytest.mark.parametrize(
    ("change", "status"),
    [({"m": 9}, "INVALID_VALUE"), ({"compute": 70}, "no algorithm"), ({"compute": 99}, "ARCH")],
)
def test_statuses_are_named(cublas, change, status):
    call, arrays, *_ = linear_call(np.random.default_rng(11))
    with pytest.raises(CublasError, match=status):
        cublas.run(replace(call, **change), addresses_of(arrays))
    assert cublas.live == 0


def test_the_heuristic_has_the_layout_of_the_header():
    assert ctypes.sizeof(Heuristic) == 96
    assert Heuristic.workspace_bytes.offset == 64
    assert Heuristic.state.offset == 72
