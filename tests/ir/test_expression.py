"""Expressions against Python's own evaluation, and their lowering to NumPy on awkward shapes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.errors import GraphError
from graphc.ir.expression import Result, parse
from graphc.ir.types import as_dtype, tensor_type
from graphc.ops.cpu.numpy_expression import TILE_ELEMENTS, evaluate, lower, registers_type

WORLD = {"exp": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "maximum": np.maximum, "where": np.where}
WORLD |= {name: getattr(np, name) for name in ("sin", "abs", "minimum", "floor", "isnan")}


def run(source, inputs, output, constants=None, over=None):
    """Evaluate through the lowering; `over` names an input that the output overwrites."""
    expression = parse(source).specialize(constants or {})
    dtypes = {name: as_dtype(array.dtype) for name, array in inputs.items()}
    lowering = lower({"y": expression}, dtypes, {"y": as_dtype(output.dtype)})
    type = tensor_type(output.shape, output.dtype)
    registers = [np.empty(t.shape, t.dtype.numpy) for t in registers_type(lowering, type)]
    out = inputs[over] if over else output
    evaluate(lowering, list(inputs.values()), [out], registers)()
    return out


@st.composite
def sources(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["a", "b", "0.5", "2", "k"]))
    inner = sources(depth=depth - 1)
    form = draw(
        st.sampled_from(
            [
                "({} + {})",
                "({} - {})",
                "({} * {})",
                "tanh({})",
                "(-{})",
                "maximum({}, {})",
                "where({} > {}, {}, {})",
                "where(isnan({}) | ~({} < {}), {}, {})",
                "sin({})",
                "minimum({}, abs({}))",
                "floor({})",
                "({} % {})",
                "({}) ** 2",
            ]
        )
    )
    return form.format(*(draw(inner) for _ in range(form.count("{}"))))


@given(sources(), st.sampled_from([(5,), (), (3, 4)]))
def test_equals_python(source, shape):
    rng = np.random.default_rng(0)
    inputs = {name: rng.uniform(-1, 1, shape) for name in "ab"}
    with np.errstate(all="ignore"):
        wanted = eval(source, {**WORLD, **inputs, "k": 3.0})
        found = run(source, inputs, np.empty(shape), {"k": 3.0})
        np.testing.assert_allclose(found, np.broadcast_to(wanted, shape), rtol=1e-13, atol=1e-15)
        over = run(
            source, {n: a.copy() for n, a in inputs.items()}, np.empty(shape), {"k": 3.0}, "a"
        )
        np.testing.assert_array_equal(over, found)


@pytest.mark.parametrize(
    "shape",
    [(TILE_ELEMENTS * 2 + 3,), (3, TILE_ELEMENTS + 1), (TILE_ELEMENTS // 7, 31), (1, 2, 40000)],
)
def test_tiles_cover_every_element(shape):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(shape), rng.standard_normal(shape[-1:])
    wanted = b * (1 - a * a)
    np.testing.assert_allclose(run("b * (1 - a * a)", {"a": a, "b": b}, np.empty(shape)), wanted)
    strided = np.asfortranarray(a)
    found = run("b * (1 - a * a)", {"a": strided, "b": b}, np.empty(shape))
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_are_computed_in_float32_and_rounded_once(dtype):
    numpy = as_dtype(dtype).numpy
    a = np.linspace(-3, 3, 101).astype(numpy)
    wide = a.astype(np.float32)
    wanted = (np.tanh(wide) * wide + np.float32(1)).astype(numpy)
    found = run("tanh(a) * a + 1", {"a": a}, np.empty(101, numpy))
    np.testing.assert_array_equal(found, wanted)


def test_where_is_exact_for_nan_and_infinity():
    a = np.array([np.nan, np.inf, -0.0, 1.0], np.float32)
    c = np.array([0.0, -1.0, 1.0, 2.0], np.float32)
    found = run("where(c > 0, a, 0)", {"c": c, "a": a}, np.empty(4, np.float32))
    assert found.tobytes() == np.array([0.0, 0.0, -0.0, 1.0], np.float32).tobytes()


def test_attributes_fold_and_powers_expand():
    expression = parse("x ** p * (1 - b)")
    assert expression.names == {"x", "p", "b"}
    folded = expression.specialize({"p": 2.0, "b": 0.75})
    assert [i.function for i in folded.instructions] == ["multiply", "multiply"]
    assert folded.instructions[1].operands == (Result(0), 0.25)
    assert parse("tanh(x) * tanh(x)").flops == parse("tanh(x)").flops + 1


@pytest.mark.parametrize("source", ["x +", "x if y else z", "foo(x)", "x < y < z", "x @ y", "'a'"])
def test_unknown_expressions_are_refused(source):
    with pytest.raises(GraphError, match="expression"):
        parse(source)


def test_power_with_other_exponents():
    x = np.array([0.5, 2.0])
    assert run("x ** 3", {"x": x}, np.empty(2)).tolist() == [0.125, 8.0]
    assert math.isclose(run("x ** -1", {"x": x}, np.empty(2))[1], 0.5)


@pytest.mark.parametrize(
    ("source", "constants", "value"),
    [
        ("a / b", {"a": 1.0, "b": 0.0}, math.inf),
        ("a / b", {"a": -1.0, "b": 0.0}, -math.inf),
        ("a / b", {"a": 0.0, "b": 0.0}, math.nan),
        ("a ** b", {"a": 0.0, "b": -1.0}, math.inf),
        ("a ** b", {"a": -8.0, "b": 0.5}, math.nan),
        ("a ** b", {"a": 1e300, "b": 2.0}, math.inf),
        ("a * b", {"a": 1e300, "b": 1e300}, math.inf),
        ("a - b", {"a": math.inf, "b": math.inf}, math.nan),
    ],
)
def test_constants_fold_as_kernels_would_compute_them(source, constants, value):
    folded = parse(source).specialize(constants)
    assert folded.instructions == ()
    assert folded.value == value or (math.isnan(value) and math.isnan(folded.value))
