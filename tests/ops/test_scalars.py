"""Scalar functions where rows of random numbers do not reach: integers' limits, kinks, bounds."""

import operator

import numpy as np
import pytest
from codegen.on_cpu import Library, aligned, generated, kernels_in

import graphc as g
from graphc.errors import DTypeError, GraphcError, OptionError

INTEGERS = ("int32", "int64", "uint8")


def limits(dtype):
    """Every pair of small integers, bit counts and the ends of a dtype."""
    ends = np.iinfo(dtype)
    some = {ends.min, ends.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, 8, 31, 32, 63, 64, ends.max}
    given = np.array(sorted(x for x in some if ends.min <= x <= ends.max), dtype)
    return np.repeat(given, len(given)), np.tile(given, len(given))


def truncated(a, b):
    """Of Python's own integers, rounded towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def power(a, b):
    return a**b if b >= 0 else {1: 1, -1: 1 - 2 * (b % 2)}.get(a, 0)


def shifted(a, b, bits, left):
    inside = 0 <= b < bits
    if left:
        return a << b if inside else 0
    return a >> (b if inside else bits)


BITS = {"int32": 32, "int64": 64, "uint8": 8}
BINARY = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "maximum": lambda a, b, bits: max(a, b),
    "minimum": lambda a, b, bits: min(a, b),
    "floor_divide": lambda a, b, bits: a // b if b else 0,
    "remainder": lambda a, b, bits: a % b if b else 0,
    "trunc_divide": lambda a, b, bits: truncated(a, b) if b else 0,
    "fmod": lambda a, b, bits: a - b * truncated(a, b) if b else 0,
    "bitwise_and": lambda a, b, bits: a & b,
    "bitwise_or": lambda a, b, bits: a | b,
    "bitwise_xor": lambda a, b, bits: a ^ b,
    "left_shift": lambda a, b, bits: shifted(a, b, bits, left=True),
    "right_shift": lambda a, b, bits: shifted(a, b, bits, left=False),
}
UNARY = {"neg": operator.neg, "abs": abs, "bitwise_not": operator.invert}
UNARY |= {"sign": lambda a: (a > 0) - (a < 0)}


def wrapped(numbers, dtype):
    """Python's integers modulo the dtype's range."""
    bits = BITS[dtype]
    unsigned = np.array([x % 2**bits for x in numbers], np.uint64)
    return unsigned.astype(f"u{bits // 8}").view(dtype)


def integer_cases():
    for dtype in INTEGERS:
        a, b = limits(dtype)
        pairs = list(zip(a.tolist(), b.tolist(), strict=True))
        x, y = (g.input(name, a.shape, dtype) for name in "xy")
        for name, expected in BINARY.items():
            wanted = [expected(p, q, BITS[dtype]) for p, q in pairs]
            yield f"{name} {dtype}", getattr(g, name)(x, y), (a, b), wrapped(wanted, dtype)
        for name, expected in UNARY.items():
            wanted = [expected(p) for p in a.tolist()]
            yield f"{name} {dtype}", getattr(g, name)(x), (a,), wrapped(wanted, dtype)
        small = np.minimum(b, 70)  # larger exponents are slow in Python, not here
        small = np.maximum(small, -70) if dtype != "uint8" else small
        wanted = [power(p, q) for p, q in zip(a.tolist(), small.tolist(), strict=True)]
        yield f"power {dtype}", g.power(x, y), (a, small), wrapped(wanted, dtype)
        wanted = [min(max(p, 2), 31) for p in a.tolist()]
        yield f"clip {dtype}", g.clip(x, 2, 31), (a,), wrapped(wanted, dtype)


CASES = {name: rest for name, *rest in integer_cases()}


@pytest.fixture(scope="module")
def kernels():
    """The generated kernels of all cases, as C++."""
    laid = {}
    for name, (y, operands, _) in CASES.items():
        arrays = {v: aligned(x) for v, x in zip(y.node.inputs, operands, strict=True)}
        arrays[y] = aligned(np.full(y.shape, 77, y.type.dtype.numpy))
        laid[name] = arrays, generated(y.node, arrays)
    return laid, Library(kernels_in([k for _, k in laid.values()]))


@pytest.mark.parametrize("name", CASES)
def test_integers_up_to_their_limits(name, kernels):
    y, operands, wanted = CASES[name]
    fed = {x.name: array for x, array in zip(y.node.inputs, operands, strict=True)}
    found = g.compile(outputs={"y": y}).step(fed)["y"]
    np.testing.assert_array_equal(found, wanted, strict=True)
    laid, library = kernels
    arrays, calls = laid[name]
    library.run(calls, arrays)
    np.testing.assert_array_equal(arrays[y], wanted, strict=True)


FLOATS = np.array([-np.inf, -7.5, -3.0, -1.0, -0.0, 0.0, 0.1, 1.0, 3.0, 6.0, np.inf, np.nan])


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "trunc_divide"])
def test_quotients_of_floats_at_zeros_and_infinities(name):
    a, b = np.repeat(FLOATS, len(FLOATS)), np.tile(FLOATS, len(FLOATS))
    x, y = (g.input(n, a.shape, "float64") for n in "xy")
    z = getattr(g, name)(x, y)
    with np.errstate(all="ignore"):
        wanted = np.trunc(a / b) if name == "trunc_divide" else getattr(np, name)(a, b)
    arrays = {x: aligned(a), y: aligned(b), z: aligned(np.zeros_like(a))}
    calls = generated(z.node, arrays)
    Library(kernels_in([calls])).run(calls, arrays)
    for found in (g.compile(outputs={"z": z}).step(x=a, y=b)["z"], arrays[z]):
        np.testing.assert_array_equal(found, wanted)
        real = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(found[real]), np.signbit(wanted[real]))


def slope(function, at):
    """The gradient of a function of one number at some points."""
    at = np.array(at, float)
    x = g.input("x", at.shape, "float64")
    (dx,) = g.gradient(g.sum(function(x)), [x])
    program = g.compile(outputs={"dx": dx})
    return program.step({"x": at} if x in program.graph.inputs else {})["dx"].tolist()


@pytest.mark.parametrize(
    ("function", "points", "slopes"),
    [
        (g.abs, [-2, 0, 3], [-1, 0, 1]),
        (lambda x: g.clip(x, -1, 1), [-2, -1, 0, 1, 2], [0, 0, 1, 0, 0]),
        (lambda x: g.clip(x, low=-1), [-2, -1, 0, 1, 2], [0, 0, 1, 1, 1]),
        (lambda x: g.clip(x, high=1), [-2, -1, 0, 1, 2], [1, 1, 1, 0, 0]),
        (lambda x: g.clip(x, 1, -1), [-2, -1, 0, 1, 2], [0, 0, 0, 0, 0]),
        (lambda x: g.minimum(x, 1.0), [0, 1, 2], [1, 1, 0]),
        (lambda x: g.maximum(x, 1.0), [0, 1, 2], [0, 1, 1]),
        (lambda x: g.elu(x, 0.5), [-1e3, 0, 1], [0, 0.5, 1]),
        (g.hard_swish, [-4, -3, 0, 3, 4], [0, 0, 0.5, 1, 1]),
        (lambda x: g.hard_sigmoid(x, 0.5, 0.5), [-2, -1, 0, 1, 2], [0, 0, 0.5, 0, 0]),
        (lambda x: g.prelu(x, g.full((), 0.5, "float64")), [-1, 0, 1], [0.5, 0.5, 1]),
        (lambda x: g.thresholded_relu(x, 1.0), [0, 1, 2], [0, 0, 1]),
        (lambda x: x**0, [0, 1], [0, 0]),
        (lambda x: g.power(x, g.full((), 0.0, "float64")), [-1, 0, 1], [0, 0, 0]),
        (lambda x: g.power(0.0, x), [0, 1, 2], [0, 0, 0]),
        (lambda x: g.power(x, g.full((), 2.0, "float64")), [-3, 0, 3], [-6, 0, 6]),
        *[(f, [-0.5, 0, 1.5], [0, 0, 0]) for f in (g.floor, g.ceil, g.round, g.trunc, g.sign)],
        (lambda x: g.floor_divide(x, 0.7), [-0.5, 0, 1.5], [0, 0, 0]),
    ],
)
def test_the_gradient_at_kinks(function, points, slopes):
    assert slope(function, points) == slopes


def test_the_gradient_of_infinite_powers_goes_with_them():
    b = np.array([-1.0, 0.5])
    x = g.input("x", (2,), "float64")
    (dx,) = g.gradient(g.sum(g.power(0.0, x)), [x])
    assert g.compile(outputs={"dx": dx}).step(x=b)["dx"].tolist() == [-np.inf, 0.0]


def test_smooth_functions_keep_their_digits_where_simple_forms_lose_them():
    x = g.input("x", (4,), "float64")
    at = np.array([-800.0, -40.0, 40.0, 800.0])
    found = g.compile(outputs={"y": g.softplus(x), "z": g.mish(x), "e": g.elu(x)}).step(x=at)
    np.testing.assert_allclose(found["y"], [0, np.exp(-40), 40, 800], rtol=1e-15)
    np.testing.assert_allclose(found["z"], [0, -40 * np.exp(-40), 40, 800], rtol=1e-14)
    np.testing.assert_allclose(found["e"], [-1, np.exp(-40) - 1, 40, 800], rtol=1e-15)
    assert slope(g.softplus, at) == pytest.approx([0, np.exp(-40), 1, 1], rel=1e-14)


def test_bounds_of_a_clip():
    x, low = g.input("x", (3,)), g.input("low", (3,))
    assert g.clip(x) is x
    assert g.clip(x, 0, 1).producer.op.name == "clip"
    assert g.clip(x, -np.inf, 1.0).producer.op.name == "minimum"
    fed = {"x": np.array([-2, 0.5, 9], np.float32), "low": np.array([-1, 1, 0], np.float32)}
    found = g.compile(outputs={"y": g.clip(x, low, 3.0)}).step(fed)["y"]
    assert found.tolist() == [-1, 1, 3]
    for wrong in (300, 0.5, "1"):
        with pytest.raises(GraphcError):
            g.clip(g.input("u", (3,), "uint8"), 0, wrong)


OPERATORS = [
    operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor, operator.lshift,
    operator.rshift, operator.pow,
]  # fmt: skip


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_on_both_sides(symbol):
    a, b = np.array([7, 5, 12], np.int32), np.array([3, 2, 1], np.int32)
    x, y = g.input("x", (3,), "int32"), g.input("y", (3,), "int32")
    outputs = {"both": symbol(x, y), "right": symbol(x, 2), "left": symbol(2, y)}
    found = g.compile(outputs=outputs).step(x=a, y=b)
    for name, wanted in (("both", symbol(a, b)), ("right", symbol(a, 2)), ("left", symbol(2, b))):
        np.testing.assert_array_equal(found[name], wanted)


def test_logic_of_bools():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    x, y = g.input("x", (4,), "bool"), g.input("y", (4,), "bool")
    outputs = {"and": x & y, "or": x | y, "xor": x ^ y, "not": ~x, "some": x & True}
    found = g.compile(outputs=outputs).step(x=a, y=b)
    wanted = {"and": a & b, "or": a | b, "xor": a ^ b, "not": ~a, "some": a}
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_nan_and_infinity_are_found_and_go_through():
    x = g.input("x", (4,), "float16")
    at = np.array([np.nan, np.inf, -np.inf, 1], np.float16)
    outputs = {"nan": g.isnan(x), "inf": g.isinf(x), "least": g.minimum(x, 0.0), "abs": abs(x)}
    found = g.compile(outputs=outputs | {"sign": g.sign(x)}).step(x=at)
    assert found["nan"].tolist() == [True, False, False, False]
    assert found["inf"].tolist() == [False, True, True, False]
    np.testing.assert_array_equal(found["least"], [np.nan, 0, -np.inf, 0])
    np.testing.assert_array_equal(found["abs"], [np.nan, np.inf, np.inf, 1])
    np.testing.assert_array_equal(found["sign"], [np.nan, 1, -1, 1])


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, np.float32(np.inf)])
@pytest.mark.parametrize(
    "function", [operator.add, operator.sub, operator.mul, lambda x, n: n - x, lambda x, n: n * x]
)
def test_numbers_beside_operators_need_not_be_finite(function, number):
    given = np.array([-2.0, 0.0, 1.5], np.float32)
    program = g.compile(outputs=(function(g.input("x", (3,)), number),))
    with np.errstate(invalid="ignore"):
        expected = function(given, np.float32(number))
    np.testing.assert_array_equal(*program.step({"x": given}).values(), expected)


@pytest.mark.parametrize("function", [g.bitwise_and, g.left_shift, g.right_shift])
def test_floats_have_no_bits(function):
    x = g.input("x", (2,))
    with pytest.raises(DTypeError, match="bitwise operators need bool or integers"):
        function(x, x)


def test_arithmetic_on_bools_is_refused():
    x = g.input("x", (2,), "bool")
    for function in (g.abs, g.sign, lambda x: x // x, lambda x: x << x, lambda x: x**x):
        with pytest.raises(DTypeError, match="bool has no arithmetic"):
            function(x)


def test_calls_with_only_numbers_are_refused():
    with pytest.raises(OptionError, match="one operand must be a graphc value"):
        g.power(2.0, 3.0)
