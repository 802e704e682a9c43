"""GPU kernels for 8-bit operands as C++, bit for bit against NumPy's, and their products."""

import itertools
from dataclasses import replace

import loops
import ml_dtypes
import numpy as np
import pytest
from codegen.checks import ARCHITECTURES
from codegen.fake_cublas import StandIn
from codegen.on_cpu import Library, aligned, kernels_in, places_of
from codegen.test_compiled import check_cubin
from ops.test_float8 import (
    FORMATS,
    matrix_of,
    numbers,
    scale_states,
    scales,
    stored_values,
    sweep,
)
from ops.test_strides import run

import graphc as g
from graphc.codegen.elementwise.updates import grouped, groups
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Gemm, NodeCalls
from graphc.codegen.products.kernel import product_kernel
from graphc.codegen.text.kernel import module_text
from graphc.errors import GraphcError
from graphc.ir.builder import apply, state
from graphc.ir.types import as_dtype
from graphc.ops.float8 import (
    HISTORY,
    TILE,
    Float8Linear,
    Float8Product,
    Float8ProductAttributes,
    Quantize,
    QuantizeAttributes,
    QuantizeBoth,
    QuantizeTurned,
    ScaleUpdate,
)

STORES = (Quantize, QuantizeTurned, QuantizeBoth)
both_formats = pytest.mark.parametrize("name", FORMATS)


def storing(op, name, x, factor):
    value, (scale,) = g.input("x", x.shape, as_dtype(x.dtype)), scale_states(1)
    node = apply(op, value, scale, attributes=QuantizeAttributes(name))
    arrays = {value: x, scale: aligned(scales(factor))}
    return node, arrays | {v: aligned(np.zeros(v.shape, v.type.dtype.numpy)) for v in node.outputs}


def check_bits(cases):
    """Compare kernels of nodes, with threads in both orders, with NumPy's, bit for bit."""
    calls = {name: calls_of(node, places_of(arrays)) for name, (node, arrays) in cases.items()}
    library = Library(kernels_in(list(calls.values())))
    for name, (node, arrays) in cases.items():
        copies = {value: array.copy() for value, array in arrays.items()}
        expected = run(node, copies)
        for descending in (False, True):
            with loops.case(f"{name}, {descending=}"):
                for value in node.outputs:
                    arrays[value].view(np.uint8)[...] = 0x55
                library.run(calls[name], arrays, descending)
                for value, wanted in zip(node.outputs, expected, strict=True):
                    np.testing.assert_array_equal(
                        arrays[value].astype(np.float32), wanted.astype(np.float32)
                    )


def test_kernels_store_the_same_bits():
    rng = np.random.default_rng(5)
    shapes = (16, 16), (TILE, TILE), (TILE + 32, 2 * TILE + 48)
    cases = {}
    for op, name, dtype, shape in itertools.product(
        STORES, FORMATS, ("float32", "bfloat16"), shapes
    ):
        x = aligned((3 * rng.standard_normal(shape)).astype(as_dtype(dtype).numpy))
        cases[f"{op.__name__} {name} {dtype} {shape}"] = storing(op, name, x, 1.3)
    check_bits(cases)


def test_every_rounding_and_nan():
    cases = {}
    for name in FORMATS:
        x = matrix_of(sweep(name))
        x[-1, -1] = np.nan
        cases[name] = storing(QuantizeBoth, name, aligned(x), 1.0)
    check_bits(cases)


def test_an_operand_that_is_not_aligned():
    """A part of a concatenation may begin at any element."""
    whole = aligned(np.arange(16 * 32 + 1, dtype=np.float32))
    x = whole[1:].reshape(16, 32)
    assert x.ctypes.data % 16 == 4
    check_bits({"behind one element": storing(QuantizeBoth, "float8_e4m3", x, 1.0)})


@both_formats
@pytest.mark.parametrize("epilogues", [True, False])
@pytest.mark.parametrize(("op", "wide"), [(Float8Product, True), (Float8Product, False),
                                          (Float8Linear, False)])  # fmt: skip
def test_products(name, op, wide, epilogues):
    """By the library, and by a kernel where it declines; both read the factors in memory."""
    if op is Float8Linear and name != "float8_e4m3":
        return
    rng = np.random.default_rng(6)
    (a,), (b,) = stored_values((32, 48), dtype=name), stored_values((64, 48))
    others = [*scale_states(3), g.input("bias", (64,), "bfloat16")] if op is Float8Linear else (
        scale_states(2))  # fmt: skip
    attributes = Float8ProductAttributes(wide) if op is Float8Product else None
    node = apply(op, a, b, *others, attributes=attributes)
    given = [rng.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in node.inputs]
    for index, value in enumerate(node.inputs):
        if value.shape == (2,):
            given[index] = scales(rng.uniform(0.5, 2))
    arrays = dict(zip(node.inputs, map(aligned, given), strict=True))
    arrays[node.output] = aligned(np.full(node.output.shape, np.nan, node.output.type.dtype.numpy))
    expected = run(node, {value: array.copy() for value, array in arrays.items()})[0]
    found = calls_of(node, places_of(arrays), epilogues=epilogues)
    by_kernel = NodeCalls(
        tuple(product_kernel(c) if isinstance(c, Gemm) else c for c in found.calls)
        if not epilogues or op is Float8Product else ()
    )  # fmt: skip
    cublas = StandIn()
    for calls in (found, by_kernel):
        if not calls.calls:
            continue
        Library(kernels_in([calls])).run(calls, arrays, cublas=cublas)
        result = arrays[node.output].astype(np.float64)
        size = np.abs(given[0].astype(np.float64)) @ np.abs(given[1].astype(np.float64).T) * 4
        rounding = 0 if wide else 2.0**-8 * np.abs(expected.astype(np.float64))
        assert (np.abs(result - expected) <= 48 * 2.0**-24 * size + rounding).all()
    cublas.close()
    assert cublas.live == 0


def test_the_library_takes_no_other_form():
    """Sums along another axis, and two operands with 5 bits of exponent."""
    (a, b), others = stored_values((32, 48), (64, 48)), scale_states(2)
    node = apply(Float8Product, a, b, *others)
    arrays = {
        v: aligned(np.zeros(v.shape, v.type.dtype.numpy)) for v in (*node.inputs, node.output)
    }
    (call,) = calls_of(node, places_of(arrays)).calls
    assert (call.transpose_first, call.transpose_second) == (True, False)
    wrong = replace(call, transpose_second=True, second=replace(call.second, leading=32))
    cublas = StandIn()
    addresses = {value: array.ctypes.data for value, array in arrays.items()}
    with pytest.raises(GraphcError):
        cublas.run(wrong, addresses)
    with pytest.raises(GraphcError):
        cublas.run(replace(call, factors=None), addresses)
    cublas.close()


def updates(count, name):
    nodes, arrays = [], {}
    rng = np.random.default_rng(7)
    for index in range(count):
        scale = state(f"s{index}", (2,), "float32", 1.0, "statistic")
        past = state(f"h{index}", (HISTORY,), "float32", 0.0, "statistic")
        maxima = g.input(f"m{index}", (1 + 130 * index,))
        node = apply(ScaleUpdate, scale, past, maxima, attributes=QuantizeAttributes(name))
        nodes.append(node)
        given = rng.uniform(0, 5, maxima.shape).astype(np.float32)
        if index == 1:
            given[-1] = np.inf
        history = rng.uniform(0, 6, HISTORY).astype(np.float32) * (index != 2)
        given *= index != 2
        arrays |= {scale: aligned(scales(3.0)), past: aligned(history), maxima: aligned(given)}
        arrays |= dict(zip(node.outputs, (arrays[scale], arrays[past]), strict=True))
    return nodes, arrays


@both_formats
def test_many_scales_are_updated_by_one_launch(name):
    nodes, arrays = updates(5, name)
    states = [value for node in nodes for value in node.inputs[:2]]
    copies = {value: array.copy() for value, array in arrays.items()}
    for node in nodes:
        copies |= dict(zip(node.outputs, (copies[v] for v in node.inputs[:2]), strict=True))
        run(node, copies)
    (group,) = groups(nodes, places_of(arrays))
    assert group == tuple(nodes)
    launch = grouped(nodes, places_of(arrays))
    assert launch.grid == 5
    Library([launch.kernel]).run(NodeCalls((launch,)), arrays)
    for value in states:
        assert arrays[value].tobytes() == copies[value].tobytes()


@both_formats
def test_the_number_of_every_code(name):
    """A product with the identity, by a kernel, since the library is not defined for NaN."""
    table = numbers(name)
    codes = np.flatnonzero(np.isfinite(table)).astype(np.uint8)
    codes = np.concatenate([codes, np.zeros(256 - codes.size, np.uint8)])
    (a,), (b,) = stored_values((16, 16), dtype=name), stored_values((16, 16))
    node = apply(Float8Product, a, b, *scale_states(2), attributes=Float8ProductAttributes(True))
    given = [codes.view(a.type.dtype.numpy).reshape(16, 16),
             np.eye(16).astype(ml_dtypes.float8_e4m3fn), scales(1.0), scales(1.0)]  # fmt: skip
    arrays = dict(zip(node.inputs, map(aligned, given), strict=True))
    arrays[node.output] = aligned(np.zeros((16, 16), np.float32))
    (call,) = calls_of(node, places_of(arrays)).calls
    launch = product_kernel(call)
    Library([launch.kernel]).run(NodeCalls((launch,)), arrays)
    np.testing.assert_array_equal(arrays[node.output].reshape(-1), table[codes])


def all_kernels():
    for name in FORMATS:
        for op in STORES:
            for dtype in ("float32", "bfloat16"):
                x = aligned(np.zeros((160, 160), as_dtype(dtype).numpy))
                node, arrays = storing(op, name, x, 1.0)
                yield from calls_of(node, places_of(arrays)).kernels
        nodes, arrays = updates(3, name)
        yield grouped(nodes, places_of(arrays)).kernel
        (a,), (b,) = stored_values((32, 48), dtype=name), stored_values((64, 48))
        node = apply(Float8Product, a, b, *scale_states(2))
        values = (*node.inputs, node.output)
        arrays = {v: aligned(np.zeros(v.shape, v.type.dtype.numpy)) for v in values}
        (call,) = calls_of(node, places_of(arrays)).calls
        yield product_kernel(call).kernel


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_kernels_compile(architecture):
    """From sm_89 on the device converts; older ones compile the code that tests run as C++."""
    check_cubin(module_text(all_kernels()), architecture)
