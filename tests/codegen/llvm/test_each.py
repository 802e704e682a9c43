"""Elementwise programs on NumPy's arrays, against NumPy."""

import ctypes
import mmap

import numpy as np
import pytest
from codegen.llvm.native import run

from graphc.codegen.elementwise.program import Each
from graphc.codegen.llvm.each import each_call
from graphc.codegen.node_calls import Slot
from graphc.codegen.text.operands import Operand, counter
from graphc.ir.expression import parse
from graphc.ir.types import DTYPES, as_dtype, float32, int64

NAMES = [dtype.name for dtype in DTYPES]


def operand(name, array, shape, slot):
    """An array as an operand; it may lie over another, from any address on."""
    spread = np.broadcast_to(array, shape)
    pairs = zip(shape, spread.strides, strict=True)
    strides = tuple(0 if n == 1 else s // array.itemsize for n, s in pairs)
    return Operand(name, as_dtype(array.dtype), strides, slot)


def call_of(shape, inputs, outputs, expressions, more=(), locals=None):
    """The call of a program over named arrays, and its buffers."""
    named = [*inputs.items(), *outputs.items()]
    operands = [operand(name, a, shape, Slot(i)) for i, (name, a) in enumerate(named)]
    count = len(inputs)
    program = Each(
        "program", shape, (*operands[:count], *more), tuple(operands[count:]),
        {name: parse(source) for name, source in expressions.items()}, locals or {},
    )  # fmt: skip
    return each_call(program), {Slot(i): array for i, (_, array) in enumerate(named)}


def drawn(shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 100, shape) if dtype != "bool" else rng.integers(0, 2, shape)
    array = array if dtype in ("uint8", "bool") else array - 50
    return np.asarray(array).astype(as_dtype(dtype).numpy)


@pytest.mark.parametrize("to", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_casts(source, to):
    x, y = drawn((3, 21), source), np.zeros((3, 21), as_dtype(to).numpy)
    call, buffers = call_of(x.shape, {"x": x}, {"y": y}, {"y": "x"})
    run([call], buffers)
    np.testing.assert_array_equal(y, x.astype(y.dtype), strict=True)


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_to_nearest_even(to):
    bits = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.float32([np.inf, -np.inf, np.nan, 65520])])
    y = np.zeros(x.shape, as_dtype(to).numpy)
    call, buffers = call_of(x.shape, {"x": x}, {"y": y}, {"y": "x"})
    run([call], buffers)
    with np.errstate(all="ignore"):
        expected = x.astype(y.dtype)
        np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("to", ["float16", "bfloat16"])
def test_narrow_floats_are_computed_wide_and_rounded_at_every_output(to):
    kind = as_dtype(to).numpy
    x = np.random.default_rng(0).standard_normal(37).astype(kind)
    y, z = np.zeros(37, kind), np.zeros(37, kind)
    sources = {"m": "x * 1.001 + x", "y": "m * m", "z": "y - m"}
    call, buffers = call_of((37,), {"x": x}, {"y": y, "z": z}, sources, (), {"m": as_dtype(to)})
    run([call], buffers)
    wide = x.astype(np.float32)
    m = (wide * np.float32(1.001) + wide).astype(kind).astype(np.float32)
    np.testing.assert_array_equal(y, (m * m).astype(kind), strict=True)
    np.testing.assert_array_equal(z, (y.astype(np.float32) - m).astype(kind), strict=True)


LAYOUTS = {
    "dense": ((6, 5, 33), lambda x: x),
    "one": ((1,), lambda x: x),
    "a number": ((1,), lambda x: x.reshape(())),
    "cut": ((6, 5, 40), lambda x: x[:, 1:, 2:35]),
    "narrow": ((90, 9), lambda x: x[:, :7]),
    "steps": ((7, 50), lambda x: x[::2, ::3]),
    "reversed": ((4, 6, 19), lambda x: x[::-1, :, ::-1]),
    "transposed": ((37, 53), lambda x: x.T),
    "channels-last": ((3, 9, 17, 40), lambda x: x.transpose(0, 3, 1, 2)),
    "channels-first": ((3, 40, 9, 17), lambda x: x.transpose(0, 2, 3, 1)),
    "inside out": ((16, 8, 20), lambda x: x.transpose(2, 1, 0)),
    "long": ((3, 40_000), lambda x: x),
    "large and transposed": ((300, 280), lambda x: x.T),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_any_strides(layout, dtype):
    shape, view = LAYOUTS[layout]
    x = view(drawn(shape, dtype))
    z = drawn(x.shape, dtype, 1)
    y = np.zeros(x.shape, x.dtype)
    call, buffers = call_of(x.shape, {"x": x, "z": z}, {"y": y}, {"y": "maximum(x, z)"})
    run([call], buffers, backwards=True)
    np.testing.assert_array_equal(y, np.maximum(x, z), strict=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_of_any_strides(layout):
    shape, view = LAYOUTS[layout]
    whole = np.full(shape, 77, np.float32)
    y = view(whole)
    x = drawn(np.shape(y))
    call, buffers = call_of(x.shape, {"x": x}, {"y": y}, {"y": "x + 1"})
    run([call], buffers)
    expected = np.full(shape, 77, np.float32)
    view(expected)[...] = x + 1
    np.testing.assert_array_equal(whole, expected)  # nothing is written beside it


@pytest.mark.parametrize("shapes", [((4, 1, 30), (5, 1)), ((1,), (3, 17)), ((5, 20), (5, 1))])
def test_operands_are_broadcast(shapes):
    a, b = drawn(shapes[0]), drawn(shapes[1], seed=1)
    y = np.zeros(np.broadcast_shapes(*shapes), np.float32)
    call, buffers = call_of(y.shape, {"a": a, "b": b}, {"y": y}, {"y": "a - b"})
    run([call], buffers)
    np.testing.assert_array_equal(y, a - b)


def test_an_output_may_lie_over_an_operand():
    for view in (lambda x: x, lambda x: x.T, lambda x: x[::2, 1::3]):
        whole = drawn((60, 70))
        x = view(whole)
        z, expected = drawn(x.shape, seed=1), x.copy()
        call, buffers = call_of(x.shape, {"x": x, "z": z}, {"x2": x}, {"x2": "x * z + x"})
        run([call], buffers)
        np.testing.assert_array_equal(x, expected * z + expected)


def test_places_are_counted():
    y = np.zeros((7, 33), np.int64)
    shape = y.shape
    more = (counter("row", int64, 0, 2), counter("column", int64, 1, 2))
    call, buffers = call_of(shape, {}, {"y": y}, {"y": "row * 100 + column"}, more)
    run([call], buffers)
    rows, columns = np.indices(shape)
    np.testing.assert_array_equal(y, rows * 100 + columns)


def test_dtypes_mix_as_in_c():
    x, label = drawn((5, 20)), drawn((5, 1), "int32")
    mask, y = drawn((5, 20), "bool"), np.zeros((5, 20), np.float32)
    inputs = {"x": x, "label": label, "mask": mask}
    call, buffers = call_of(y.shape, inputs, {"y": y}, {"y": "where(mask, x * label, label + 0.5)"})
    run([call], buffers)
    expected = np.where(mask, x * label, label + np.where(mask, 0.0, 0.5).astype(int))
    np.testing.assert_array_equal(y, expected)


def test_bools_and_bytes():
    a, b = drawn((3, 30), "bool"), drawn((3, 30), "bool", 1)
    u, y, found = drawn((3, 30), "uint8"), np.zeros((3, 30), np.bool_), np.zeros((3, 30), np.uint8)
    outputs = {"y": y, "found": found}
    sources = {"y": "(a & b) | ~a", "found": "where(y ^ b, u + 200, 5)"}
    call, buffers = call_of(y.shape, {"u": u, "a": a, "b": b}, outputs, sources)
    run([call], buffers)
    np.testing.assert_array_equal(y, (a & b) | ~a)
    np.testing.assert_array_equal(found, np.where(y ^ b, u + np.uint8(200), 5))


def test_nothing_is_read_beyond_an_operand():
    """The page behind the operand may not be touched: a wider access would end the process."""
    room = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(room, np.float32, 2 * mmap.PAGESIZE // 4)
    libc = ctypes.CDLL(None)
    guard = ctypes.c_void_p(whole.ctypes.data + mmap.PAGESIZE)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    last = mmap.PAGESIZE // 4
    for count in (1, 7, 16, 23):
        x = whole[last - count : last]
        x[...] = np.arange(count)
        y = np.zeros(count, np.float32)
        call, buffers = call_of((count,), {"x": x}, {"y": y}, {"y": "x + 1"})
        run([call], buffers)
        np.testing.assert_array_equal(y, np.arange(count) + 1)
        call, buffers = call_of((count,), {"y": y}, {"x": x}, {"x": "y * 2"})
        run([call], buffers)
        np.testing.assert_array_equal(x, np.arange(count) * 2 + 2)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 3) == 0


def test_one_text_serves_all_extents():
    calls = []
    for shape in ((3, 20), (500, 700)):
        x, y = drawn((*shape, 2))[..., 0], np.zeros(shape, np.float32)
        calls.append(call_of(shape, {"x": x}, {"y": y}, {"y": "x + 1"})[0])
    assert calls[0].kernel is calls[1].kernel
    assert calls[0].numbers != calls[1].numbers


def test_zeros_of_either_sign_have_texts_of_their_own():
    found = []
    for zero in (0.0, -0.0):
        y = np.full(20, 7, np.float32)
        target = Operand("y", float32, (1,), Slot(0))
        expression = parse("value").specialize({"value": zero})
        run([each_call(Each("full", (20,), (), (target,), {"y": expression}))], {Slot(0): y})
        found.append(np.signbit(y).all())
    assert found == [False, True]


def test_pieces_do_not_depend_on_what_machine_it_is():
    x = np.zeros((3, 40_000), np.float32)
    call, _ = call_of(x.shape, {"x": x}, {"y": x}, {"y": "x"})
    assert call.pieces == -(-x.size // 16384)
    assert call.work == 2 * x.size


def test_powers_of_integers_are_left_to_numpy():
    x = np.zeros(20, np.int32)
    assert call_of((20,), {"x": x}, {"y": x}, {"y": "x ** x"})[0] is None
    assert call_of((20,), {"x": x}, {"y": x}, {"y": "x * x"})[0] is not None
