"""Functions of vectors, over all exponents, against NumPy and SciPy in a wider type."""

import numpy as np
import pytest
import scipy.special
from codegen.llvm.native import run

from graphc.codegen.elementwise.program import Each
from graphc.codegen.llvm.each import each_call
from graphc.codegen.node_calls import Slot
from graphc.codegen.text.operands import Operand
from graphc.ir.expression import parse
from graphc.ir.types import as_dtype


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


SINGLE = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": scipy.special.erf, "sigmoid": sigmoid,
    "expm1": np.expm1, "log1p": np.log1p, "sin": np.sin, "cos": np.cos,
}  # fmt: skip
LIBRARY = {
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


def evaluated(source, **arrays):
    """An expression over arrays of one shape, by a kernel."""
    first = next(iter(arrays.values()))
    dtype = as_dtype(first.dtype)
    result = np.empty_like(first)
    operands = [
        Operand(name, as_dtype(array.dtype), (1,), Slot(i))
        for i, (name, array) in enumerate(arrays.items())
    ]
    target = Operand("result", dtype, (1,), Slot(len(arrays)))
    program = Each("f", first.shape, tuple(operands), (target,), {"result": parse(source)})
    buffers = {Slot(i): array for i, array in enumerate([*arrays.values(), result])}
    run([each_call(program)], buffers)
    return result


def distance(found, expected):
    """Representable numbers between two arrays; 0 where both are NaN."""
    kind = np.int32 if found.dtype == np.float32 else np.int64
    places = []
    for array in (found, expected):
        bits = array.view(kind).astype(np.int64)
        places.append(np.where(bits < 0, np.iinfo(kind).min - bits, bits))
    with np.errstate(over="ignore"):
        apart = np.abs(places[0] - places[1])
    return np.where(np.isnan(found) & np.isnan(expected), 0, apart)


def check_singles(name, bits):
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = (SINGLE | LIBRARY)[name](x.astype(np.float64)).astype(np.float32)
    found = evaluated(f"{name}(x)", x=x)
    assert (np.isnan(found) == np.isnan(expected)).all()
    assert (np.signbit(found) == np.signbit(expected))[expected == 0].all()
    far = distance(found, expected)
    assert far.max() <= 2, (x[far.argmax()], found[far.argmax()], expected[far.argmax()])


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], np.float32).view(np.uint32)


@pytest.mark.parametrize("name", SINGLE)
def test_float32_over_all_exponents(name):
    sample = np.arange(0, 2**32, 12007, dtype=np.uint64).astype(np.uint32)
    check_singles(name, np.concatenate([sample, SPECIAL]))


@pytest.mark.parametrize("name", LIBRARY)
def test_functions_of_the_library_over_all_exponents(name):
    sample = np.arange(0, 2**32, 140007, dtype=np.uint64).astype(np.uint32)
    check_singles(name, np.concatenate([sample, SPECIAL]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SINGLE)
def test_a_sixty_first_of_all_float32(name):
    """61 is odd, so that the last bits vary."""
    block = 61 * 2**22
    for first in range(0, 2**32, block):
        last = min(first + block, 2**32)
        check_singles(name, np.arange(first, last, 61, dtype=np.uint64).astype(np.uint32))


@pytest.mark.parametrize("name", [name for name in SINGLE if name != "erf"])
def test_float64(name):
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(30_000) * 10.0 ** rng.uniform(-310, 3, 30_000)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 710.0, -746.0, 1e308]
    x = np.concatenate([drawn, rng.uniform(-750, 720, 10_000), edges])
    with np.errstate(all="ignore"):
        expected = SINGLE[name](x.astype(np.longdouble)).astype(np.float64)
    found = evaluated(f"{name}(x)", x=x)
    far = distance(found, expected)
    assert far.max() <= 2, (x[far.argmax()], found[far.argmax()], expected[far.argmax()])


@pytest.mark.parametrize("name", SINGLE)
def test_a_lane_has_the_same_bits_in_every_place(name):
    x = np.random.default_rng(1).standard_normal(67).astype(np.float32) * 30
    x[5] = 1e30  # too far for the fast way of sin and cos
    whole = evaluated(f"{name}(x)", x=x)
    for skip in (1, 7, 15):
        rest = evaluated(f"{name}(x)", x=x[skip:].copy())
        np.testing.assert_array_equal(whole[skip:].view(np.uint32), rest.view(np.uint32))


BINARY = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum")
QUOTIENTS = ("floor_divide", "remainder", "fmod")
COMPARED = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def pairs(dtype):
    """Every two of some numbers, those at the edges included."""
    if dtype.kind == "f":
        some = [0.0, -0.0, 1.0, -1.5, 3.0, -7.25, 0.1, 1e30, np.inf, -np.inf, np.nan]
    else:
        edges = np.iinfo(dtype)
        some = [0, 1, -1, 2, -3, 7, 31, 33, 64, edges.max, edges.min]
    a, b = np.meshgrid(np.array(some, dtype), np.array(some, dtype))
    return np.ascontiguousarray(a).ravel(), np.ascontiguousarray(b).ravel()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*BINARY, *QUOTIENTS])
def test_functions_of_two_floats(name, dtype):
    a, b = pairs(np.dtype(dtype))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
    found = evaluated(_source(name), a=a, b=b)
    if name == "power":  # NumPy's own is not rounded to the last place
        np.testing.assert_allclose(found, expected, rtol=3e-7)
        return
    # NumPy's minimum may have the other of two zeros.
    np.testing.assert_array_equal(found, expected)
    if name in QUOTIENTS:
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def _source(name):
    signs = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**"}
    return f"a {signs[name]} b" if name in signs else f"{name}(a, b)"


INTEGERS = (
    "add", "subtract", "multiply", "maximum", "minimum", *QUOTIENTS, "bitwise_and", "bitwise_or",
    "bitwise_xor", "left_shift", "right_shift",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_two_integers(name, dtype):
    a, b = pairs(np.dtype(dtype))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
    np.testing.assert_array_equal(evaluated(_source(name), a=a, b=b), expected)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_choose(name, dtype):
    a, b = pairs(np.dtype(dtype))
    expected = np.where(getattr(np, name)(a, b), a, 3)
    np.testing.assert_array_equal(evaluated(f"where({name}(a, b), a, 3)", a=a, b=b), expected)


@pytest.mark.parametrize("name", ["abs", "sign", "floor", "ceil", "rint", "trunc", "sqrt"])
def test_functions_of_one_float(name):
    x, _ = pairs(np.dtype("float32"))
    x = np.concatenate([x, np.array([0.5, 1.5, 2.5, -0.5, -2.5], np.float32)])
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    np.testing.assert_array_equal(evaluated(f"{name}(x)", x=x), expected)


def test_predicates_of_floats():
    x, _ = pairs(np.dtype("float64"))
    for name in ("isnan", "isinf"):
        found = evaluated(f"where({name}(x), 1, 0)", x=x)
        np.testing.assert_array_equal(found, getattr(np, name)(x))
