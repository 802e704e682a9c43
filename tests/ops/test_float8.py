"""8-bit floats against tables of their definition, and ops that use them against plain loops."""

import ml_dtypes
import numpy as np
import pytest
from ops.test_strides import run

import graphc as g
from graphc.errors import DTypeError, GradientError, ShapeError
from graphc.ir.builder import apply, state
from graphc.ir.graph import Input
from graphc.ir.types import as_dtype, float8_e4m3, float8_e5m2, float32
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
    turned,
)

FORMATS = {"float8_e4m3": (4, 3, 448.0), "float8_e5m2": (5, 2, 57344.0)}
"""Bits of exponent and of mantissa, and the largest finite number."""

both_formats = pytest.mark.parametrize("name", FORMATS)


def numbers(name):
    """The number of each of 256 codes, from the definition of the format."""
    exponent_bits, mantissa_bits, most = FORMATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    found = []
    for code in range(256):
        exponent, part = code >> mantissa_bits & (2**exponent_bits - 1), code % 2**mantissa_bits
        size = (part + 2**mantissa_bits * (exponent > 0)) * 2.0 ** (
            max(exponent, 1) - bias - mantissa_bits
        )
        if name == "float8_e4m3":
            size = np.nan if code & 0x7F == 0x7F else size
        elif exponent == 31:
            size = np.nan if part else np.inf
        assert not np.isfinite(size) or size <= most
        found.append(-size if code & 0x80 else size)
    return np.array(found)


def rounded(name, x):
    """The codes nearest to x, of two the even one, beyond the largest number the largest one."""
    table = numbers(name)
    positive = table[:128][np.isfinite(table[:128])]
    size = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(positive, size), 1, positive.size - 1)
    below = above - 1
    down, up = size - positive[below], positive[above] - size
    takes_above = (up < down) | ((up == down) & (above % 2 == 0))
    codes = np.where(takes_above, above, below) | np.where(np.signbit(x), 0x80, 0)
    return codes.astype(np.uint8)


def sweep(name):
    """Numbers around all codes and around the halves between them, and over all magnitudes."""
    table = numbers(name)
    exact = table[np.isfinite(table)].astype(np.float32)
    ordered = np.unique(exact)
    halves = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
    found = [ordered, halves]
    found += [np.nextafter(x, np.float32(side)) for x in (ordered, halves)
              for side in (-np.inf, np.inf)]  # fmt: skip
    rng = np.random.default_rng(0)
    found.append((rng.standard_normal(20000) * 2.0 ** rng.uniform(-30, 30, 20000)).astype("f4"))
    largest = FORMATS[name][2]
    beyond = np.array([largest * (1 + 2**-4), largest * 1.2, 1e30, 3e38, np.inf, 1e-40], "f4")
    return np.concatenate([*found, beyond, -beyond, np.array([0.0, -0.0], "f4")])


def matrix_of(x, columns=16):
    """Numbers as a matrix whose extents are multiples of 16, filled up with zeros."""
    rows = -(-x.size // (16 * columns)) * 16
    whole = np.zeros(rows * columns, x.dtype)
    whole[: x.size] = x
    return whole.reshape(rows, columns)


def scales(factor):
    return np.array([1 / np.float32(factor), factor], np.float32)


def quantized(x, name, factor=1.0, op=Quantize):
    """The results of an op that stores x."""
    value = g.input("x", x.shape, as_dtype(x.dtype))
    scale = state("scale", (2,), "float32", 1.0, "statistic")
    node = apply(op, value, scale, attributes=QuantizeAttributes(name))
    arrays = {value: x, scale: scales(factor)}
    arrays |= {v: np.empty(v.shape, v.type.dtype.numpy) for v in node.outputs}
    return run(node, arrays)


@both_formats
def test_all_codes_are_the_numbers_of_the_format(name):
    dtype = {"float8_e4m3": float8_e4m3, "float8_e5m2": float8_e5m2}[name]
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    np.testing.assert_array_equal(codes.astype(np.float64), numbers(name))
    np.testing.assert_array_equal(codes.astype(np.float32), numbers(name))


@both_formats
def test_numbers_are_rounded_to_nearest_even_and_saturate(name):
    x = sweep(name)
    y, _ = quantized(matrix_of(x), name)
    np.testing.assert_array_equal(y.reshape(-1)[: x.size].view(np.uint8), rounded(name, x))


@both_formats
def test_nan_stays_nan(name):
    x = np.zeros((16, 16), np.float32)
    x[3, 4] = np.nan
    y, maxima = quantized(x, name)
    assert np.isnan(y.astype(np.float32)).sum() == 1
    assert np.isnan(y[3, 4].astype(np.float32))
    assert np.isnan(maxima).all()


@both_formats
def test_torch_rounds_alike(name):
    torch = pytest.importorskip("torch")
    x = sweep(name)
    x = x[np.abs(x) <= FORMATS[name][2]]
    dtype = {"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}[name]
    expected = torch.from_numpy(x).to(dtype).view(torch.uint8).numpy()
    np.testing.assert_array_equal(rounded(name, x), expected)
    y, _ = quantized(matrix_of(x), name)
    np.testing.assert_array_equal(y.reshape(-1)[: x.size].view(np.uint8), expected)


@both_formats
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(16, 32), (TILE, TILE), (TILE + 16, 2 * TILE + 48)])
def test_operands_and_their_transposes(name, dtype, shape):
    rng = np.random.default_rng(1)
    x = (3 * rng.standard_normal(shape)).astype(as_dtype(dtype).numpy)
    factor = np.float32(0.7)
    expected = rounded(name, x.astype(np.float32) * factor)
    y, maxima = quantized(x, name, factor)
    np.testing.assert_array_equal(y.view(np.uint8), expected)
    one, most = quantized(x, name, factor, QuantizeTurned)
    np.testing.assert_array_equal(one.view(np.uint8), expected.T)
    rows, columns, largest = quantized(x, name, factor, QuantizeBoth)
    np.testing.assert_array_equal(rows.view(np.uint8), expected)
    np.testing.assert_array_equal(columns.view(np.uint8), expected.T)
    tiles = [
        np.abs(x[i : i + TILE, j : j + TILE].astype(np.float32)).max()
        for i in range(0, shape[0], TILE)
        for j in range(0, shape[1], TILE)
    ]
    for found in (maxima, most, largest):
        np.testing.assert_array_equal(found, tiles)


def stored_values(*shapes, dtype="float8_e4m3"):
    return [Input(type=g.input("x", s).type.with_dtype(DTYPES[dtype]), name=f"x{i}")
            for i, s in enumerate(shapes)]  # fmt: skip


DTYPES = {"float8_e4m3": float8_e4m3, "float8_e5m2": float8_e5m2}


def scale_states(count):
    return [state(f"scale{i}", (2,), "float32", 1.0, "statistic") for i in range(count)]


@both_formats
@pytest.mark.parametrize("wide", [False, True])
def test_products_are_those_of_the_stored_numbers(name, wide):
    rng = np.random.default_rng(2)
    (a,), (b,) = stored_values((32, 48), dtype=name), stored_values((64, 48))
    one, other = scale_states(2)
    node = apply(Float8Product, a, b, one, other, attributes=Float8ProductAttributes(wide))
    given = [rng.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in (a, b)]
    arrays = dict(zip(node.inputs, [*given, scales(5.0), scales(0.3)], strict=True))
    y = node.output
    (found,) = run(node, {**arrays, y: np.empty(y.shape, y.type.dtype.numpy)})
    wide_a, wide_b = (each.astype(np.float64) for each in given)
    expected = wide_a @ wide_b.T * (1 / np.float32(5)) * (1 / np.float32(0.3))
    size = np.abs(wide_a) @ np.abs(wide_b.T) / 1.5
    rounding = 0 if wide else np.abs(expected) * 2.0**-8
    assert (np.abs(found.astype(np.float64) - expected) <= size * 48 * 2.0**-24 + rounding).all()


def test_a_bias_is_added_to_the_product():
    rng = np.random.default_rng(3)
    a, b = stored_values((16, 16), (32, 16))
    bias = g.input("bias", (32,), "bfloat16")
    node = apply(Float8Linear, a, b, *scale_states(3), bias)
    given = [rng.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in (a, b, bias)]
    arrays = dict(zip(node.inputs, [*given[:2], *[scales(1.0)] * 3, given[2]], strict=True))
    (found,) = run(node, {**arrays, node.output: np.empty((16, 32), ml_dtypes.bfloat16)})
    wide = [each.astype(np.float32) for each in given]
    np.testing.assert_array_equal(found, (wide[0] @ wide[1].T + wide[2]).astype(found.dtype))


@both_formats
def test_scales_follow_a_plain_loop(name):
    """Twenty steps; some magnitudes are 0, tiny, infinite or NaN."""
    rng = np.random.default_rng(4)
    limit = np.float32(FORMATS[name][2])
    history, factor, inverse = [np.float32(0)] * HISTORY, np.float32(1), np.float32(1)
    scale, past = state("s", (2,), "float32", 1.0, "counter"), state(
        "h", (HISTORY,), "float32", 0.0, "counter")  # fmt: skip
    maxima = g.input("m", (3,))
    node = apply(ScaleUpdate, scale, past, maxima, attributes=QuantizeAttributes(name))
    arrays = {scale: scales(1.0), past: np.zeros(HISTORY, np.float32)}
    special = {0: 0.0, 4: np.inf, 6: np.nan, 8: 1e-42, 19: 3e38}
    for step in range(20):
        given = rng.uniform(0, 9, 3).astype(np.float32)
        if step in special:
            given[:] = special[step]
        new = dict(zip(node.outputs, (arrays[scale], arrays[past]), strict=True))  # in place
        run(node, {**arrays, maxima: given, **new})
        largest = max(given) if np.isfinite(given).all() else np.float32(0)
        history = [largest, *history[:-1]]
        if max(history) > 0:
            factor = min(limit / max(history), np.float32(2.0**126))
            inverse = np.float32(1) / factor
        assert arrays[scale].tobytes() == np.array([inverse, factor], np.float32).tobytes()
        assert arrays[past].tobytes() == np.array(history, np.float32).tobytes()


def test_wrong_operands_are_rejected():
    x, (scale,) = g.input("x", (16, 16)), scale_states(1)
    attributes = QuantizeAttributes("float8_e4m3")
    with pytest.raises(ShapeError, match="extents that 16 divides, got f32\\[16,20\\]"):
        apply(Quantize, g.input("x", (16, 20)), scale, attributes=attributes)
    with pytest.raises(DTypeError, match="must be float32 or bfloat16, got f64"):
        apply(Quantize, g.input("x", (16, 16), "float64"), scale, attributes=attributes)
    with pytest.raises(ShapeError, match="scales must be f32\\[2\\]"):
        apply(Quantize, x, g.input("s", (1,)), attributes=attributes)
    (a, c), (b,) = stored_values((16, 16), (16, 32)), stored_values((16, 16), dtype="float8_e5m2")
    with pytest.raises(ShapeError, match="equal last axes"):
        apply(Float8Product, a, c, scale, scale)
    with pytest.raises(DTypeError, match="at most one of them float8_e5m2"):
        apply(Float8Product, b, b, scale, scale)
    with pytest.raises(DTypeError, match="operands must be float8_e4m3"):
        apply(Float8Linear, b, a, scale, scale, scale)
    with pytest.raises(ShapeError, match="one number of bfloat16 per column"):
        apply(Float8Linear, a, a, scale, scale, scale, x)
    with pytest.raises(ShapeError, match="history must be"):
        apply(ScaleUpdate, scale, scale, g.input("m", (3,)), attributes=attributes)
    with pytest.raises(GradientError, match="not the result of quantize"):
        turned(a)


def test_users_cannot_create_8_bit_values():
    for create in (
        lambda: g.input("x", (16, 16), "float8_e4m3"),
        lambda: g.parameter("w", (16, 16), "float8_e5m2"),
        lambda: g.cast(g.input("x", (16, 16)), "float8_e4m3"),
        lambda: g.constant(np.zeros((2, 2), ml_dtypes.float8_e5m2)),
    ):
        with pytest.raises(DTypeError):
            create()
    assert float32.kind == "float"
    assert float8_e4m3.kind == "float8"
