"""Products by oneDNN against float64, in every form that planners may give them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime.cpu.onednn.calls import (
    assert_close,
    drawn,
    has_avx512,
    moved,
    needs_library,
    run,
    strided_of,
)

import graphc as g
from graphc.codegen.products.native import (
    COLUMNS,
    MOST_BYTES,
    column_parts,
    native_bytes,
    takes_strides,
)
from graphc.codegen.text.operands import Place
from graphc.ir.builder import apply
from graphc.ir.types import bfloat16, contiguous_strides, float32, outer_axes
from graphc.ops.matmul import Linear, LinearAttributes, Matmul, MatmulAttributes
from graphc.runtime.cpu.onednn.nodes import executions

pytestmark = [
    needs_library,
    pytest.mark.skipif(not has_avx512(), reason="without AVX-512, NumPy's BLAS computes products"),
]


def product(a, b, transpose_a=False, transpose_b=False, dtype="float32", **attributes):
    inputs = [g.input("a", a, dtype), g.input("b", b, dtype)]
    flags = MatmulAttributes(transpose_a, transpose_b, **attributes)
    if flags.accumulate:
        y = g.matmul(*inputs, transpose_a, transpose_b)
        inputs.append(g.input("sum", y.shape, dtype))
    return apply(Matmul, *inputs, attributes=flags)


def arrays_of(node, lie=lambda value: None):
    """Numbers for each value; `lie` gives the axes from the outermost in memory on."""
    arrays = {}
    for seed, value in enumerate((*node.inputs, node.output)):
        array, order = drawn(value, seed), lie(value)
        if order is not None:
            array = array.transpose(order).copy().transpose(np.argsort(order))
        arrays[value] = array
    return arrays


def by_float64(node, arrays):
    """op(a) · op(b), and that of the magnitudes."""
    flags = node.attributes
    a, b = (arrays[value].astype(np.float64) for value in node.inputs[:2])
    a = a.swapaxes(-1, -2) if flags.transpose_a else a
    b = b.swapaxes(-1, -2) if flags.transpose_b else b
    return a @ b, (np.abs(a) @ np.abs(b)).max(), a.shape[-1]


def check(node, arrays, threads=2):
    expected, scale, terms = by_float64(node, arrays)
    for value in node.inputs[2:]:
        expected = expected + arrays[value].astype(np.float64)
        scale += np.abs(arrays[value]).max()
    found = run(node, arrays, native_bytes(node, strided_of(arrays)), threads)
    assert found is not None
    assert_close(arrays[node.output], expected, terms, scale)
    return found


extents = st.integers(1, 70) | st.sampled_from((1, 2, 16, 64, 65, 127, 300))


WIDE = {2048: 1, 2304: 2, 3072: 2, 4096: 1, 4608: 3, 5120: 4, 6144: 3, 3080: 1}
"""Columns of the second matrix, and the number of parts in which they are computed."""


@pytest.mark.parametrize("turned", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("accumulate", [False, True], ids=["", "accumulate"])
@pytest.mark.parametrize("columns", WIDE)
def test_wide_products(columns, accumulate, turned):
    assert column_parts(40, columns, float32) == WIDE[columns]
    shape = (20, 40) if turned else (40, 20)
    node = product(shape, (20, columns), turned, accumulate=accumulate)
    (*_, call) = check(node, arrays_of(node))
    # Only parts of a matrix whose columns are no power of 2 are packed.
    is_packed = call.kept[0].scratch_bytes >= 2 * COLUMNS * 20 * 4
    assert turned or is_packed == (WIDE[columns] > 1 or columns in (2048, 4096))


def test_products_of_16_bits_or_few_rows_are_whole():
    assert column_parts(40, 3072, bfloat16) == column_parts(31, 3072, float32) == 1


@pytest.mark.parametrize("turned", [False, True], ids=["by columns", "transposed"])
def test_a_weight_by_columns_is_multiplied_whole(turned):
    weight = (3072, 20) if turned else (20, 3072)
    node = product((40, 20), weight, transpose_b=turned)
    b = node.inputs[1]
    arrays = arrays_of(node, lambda value: (1, 0) if value is b and not turned else None)
    (call,) = check(node, arrays)
    assert call.kept[0].scratch_bytes <= native_bytes(node, strided_of(arrays))


@given(extents, extents, extents, st.booleans(), st.booleans(), st.booleans())
def test_a_product_of_matrices(rows, inner, columns, transpose_a, transpose_b, accumulate):
    a = (inner, rows) if transpose_a else (rows, inner)
    b = (columns, inner) if transpose_b else (inner, columns)
    node = product(a, b, transpose_a, transpose_b, accumulate=accumulate)
    check(node, arrays_of(node))


BATCHES = [
    ((3, 5, 7), (3, 7, 9)),
    ((2, 3, 5, 7), (2, 3, 7, 9)),
    ((2, 3, 5, 7), (7, 9)),
    ((2, 1, 5, 7), (3, 7, 9)),
    ((4, 1, 7), (4, 7, 1)),
]
HEADS = (0, 2, 1, 3)


@pytest.mark.parametrize(("a", "b"), BATCHES)
@pytest.mark.parametrize("columns_first", [False, True])
def test_a_batch_of_products(a, b, columns_first):
    node = product(a, b)

    def lie(value):
        axes = list(range(len(value.shape)))
        return [*axes[:-2], axes[-1], axes[-2]] if columns_first and value in node.inputs else None

    check(node, arrays_of(node, lie))


@pytest.mark.parametrize(
    ("transpose_a", "transpose_b", "heads"),
    [(False, True, ("a", "b")), (False, False, ("b",)), (True, False, ("b",))],
)
@pytest.mark.parametrize("images", [1, 2])
def test_products_of_attention_are_one_call(transpose_a, transpose_b, heads, images):
    """Rows of all heads take turns in queries, keys and values."""
    left = (images, 3, 9, 9) if "a" not in heads else (images, 3, 9, 16)
    node = product(left, (images, 3, 9, 16), transpose_a, transpose_b)
    names = dict(zip(node.inputs, ("a", "b"), strict=True))
    arrays = arrays_of(node, lambda value: HEADS if names.get(value) in heads else None)
    for value in node.inputs:
        assert takes_strides(node, names[value], value.type, arrays[value].strides)
    assert len(check(node, arrays)) == 1


def test_rows_that_lie_apart_are_left_to_numpy():
    node = product((5, 7), (7, 9))
    arrays = arrays_of(node)
    arrays[node.inputs[0]] = np.zeros((5, 8), np.float32)[:, :7]
    strides = arrays[node.inputs[0]].strides
    assert not takes_strides(node, "a", node.inputs[0].type, strides)
    assert run(node, arrays, native_bytes(node, {})) is None


def test_float64_and_float16_are_left_to_numpy():
    for dtype in ("float64", "float16"):
        node = product((5, 7), (7, 9), dtype=dtype)
        assert native_bytes(node, {}) == 0
        assert takes_strides(node, "a", node.inputs[0].type, (64, 2))
        assert run(node, arrays_of(node), 2**20) is None


@pytest.mark.skipif(not has_avx512("avx512_bf16"), reason="the processor has no bfloat16")
@pytest.mark.parametrize("wide", [False, True])
def test_bfloat16_is_summed_in_float32(wide):
    node = product((33, 300), (41, 300), False, True, "bfloat16", wide=wide)
    check(node, arrays_of(node))


def test_a_sum_that_lies_in_its_place_is_not_copied():
    node = product((6, 8), (8, 10), accumulate=True)
    arrays = arrays_of(node)
    expected, scale, terms = by_float64(node, arrays)
    total = arrays[node.inputs[2]].astype(np.float64)
    y = arrays[node.output] = arrays[node.inputs[2]]
    assert len(run(node, arrays, native_bytes(node, {}))) == 1
    assert_close(y, expected + total, terms, scale + np.abs(total).max())


def asked(node, strided):
    """The bytes that the library asks of its caller for a node on two threads; None where it has no
    primitive."""
    values = (*node.inputs, node.output)
    places = {v: Place(0, strided.get(v, contiguous_strides(v.type))) for v in values}
    calls = executions(node, places, 0, 2**31, 2)
    return calls and max(call.kept[0].scratch_bytes for call in calls)


long_extents = st.integers(1, 9000) | st.sampled_from((256, 512, 768, 1024, 4096, 8192, 50257))


lies = st.sampled_from(("rows", "columns", "heads"))


def lying(value, how):
    """Byte strides of matrices that lie by rows, by columns, or with rows of all heads in turn."""
    axes = list(range(len(value.shape)))
    if how == "columns":
        axes[-2:] = axes[:-3:-1]
    elif how == "heads":
        axes[-3:] = axes[-2], axes[-3], axes[-1]
    inside = contiguous_strides(value.type.with_shape(tuple(value.shape[axis] for axis in axes)))
    return tuple(inside[axes.index(axis)] for axis in range(len(axes)))


@given(
    extents | long_extents, extents | long_extents, extents | long_extents, st.integers(0, 15),
    st.sampled_from(((), (2,), (3, 5))), st.tuples(lies, lies),
)  # fmt: skip
def test_the_workspace_has_room_for_what_the_library_asks(
    rows, inner, columns, flags, batch, places
):
    turns_a, turns_b, accumulate, is_narrow = ((flags >> bit) & 1 == 1 for bit in range(4))
    a = (*batch, *((inner, rows) if turns_a else (rows, inner)))
    b = (*batch, *((columns, inner) if turns_b else (inner, columns)))
    # Not all that it asks with AMX: without room, it takes the next best.
    has_narrow = has_avx512("avx512_bf16") and not has_avx512("amx_bf16")
    dtype = "bfloat16" if is_narrow and has_narrow else "float32"
    node = product(a, b, turns_a, turns_b, dtype, accumulate=accumulate and not batch)
    found = {
        value: lying(value, how)
        for value, how in zip(node.inputs, places, strict=False)
        if batch or how == "columns"
    }
    strided = {v: strides for v, strides in found.items() if outer_axes(v.type, strides)}
    asks = asked(node, strided)
    assert asks is None or min(asks, MOST_BYTES) <= native_bytes(node, strided)


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [(20, 784, 64), (64, 1024, 4096), (1024, 768, 3072), (768, 1024, 2304), (512, 50257, 768)],
)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_the_workspace_has_little_more_room_than_that(rows, inner, columns, turned):
    a = (inner, rows) if turned[0] else (rows, inner)
    b = (columns, inner) if turned[1] else (inner, columns)
    node = product(a, b, *turned)
    assert native_bytes(node, {}) <= 1.3 * asked(node, {})


@pytest.mark.skipif(not has_avx512("avx512_bf16"), reason="no products of bfloat16 here")
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(512, 1024, 1024), (1024, 768, 3072), (4096, 1024, 1024)]
)
def test_products_of_many_rows_have_room_for_tiles(rows, inner, columns):
    node = product((rows, inner), (inner, columns), False, False, "bfloat16")
    assert asked(node, {}) <= native_bytes(node, {})


def linear(activation, rows=9, inner=33, columns=20, dtype="float32"):
    inputs = [
        g.input("x", (rows, inner), dtype),
        g.input("w", (columns, inner), dtype),
        g.input("b", (columns,), dtype),
    ]
    return apply(Linear, *inputs, attributes=LinearAttributes(activation))


@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("columns", [1, 20])
def test_linear_adds_its_bias_and_applies_its_activation(activation, columns):
    node = linear(activation, columns=columns)
    arrays = arrays_of(node)
    assert run(node, arrays, native_bytes(node, {})) is not None
    x, w, b = (arrays[value].astype(np.float64) for value in node.inputs)
    sums = x @ w.T + b
    if activation == "gelu":
        inner = np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)
        sums = 0.5 * sums * (1 + np.tanh(inner))
    scale = (np.abs(x) @ np.abs(w.T) + np.abs(b)).max()
    assert_close(arrays[node.output], sums, 33, 2 * scale)


def test_nan_passes_through_what_is_computed():
    for node in (linear("none"), linear("gelu")):
        arrays = arrays_of(node)
        arrays[node.inputs[0]][0, 0] = np.nan
        run(node, arrays, native_bytes(node, {}))
        assert np.isnan(arrays[node.output][0]).all()
        assert not np.isnan(arrays[node.output][1:]).any()


@pytest.mark.parametrize(
    ("a", "b"), [((64, 300), (300, 70)), ((3, 40, 24), (3, 24, 40)), ((1, 700), (700, 5))]
)
def test_addresses_decide_no_bit(a, b):
    node = product(a, b)
    given, bits = arrays_of(node), set()
    for offset in (0, 4, 64, 256, 2052):
        arrays = {value: moved(array, offset) for value, array in given.items()}
        assert run(node, arrays, native_bytes(node, {}) + offset) is not None
        bits.add(arrays[node.output].tobytes())
    assert len(bits) == 1


def test_a_product_made_for_fewer_threads_runs_on_more():
    node = product((70, 300), (300, 90))
    check(node, arrays_of(node), threads=1)
    check(node, arrays_of(node), threads=3)


def test_without_room_there_is_no_call():
    node = product((300, 70), (300, 90), True)
    assert run(node, arrays_of(node), 0) is None
