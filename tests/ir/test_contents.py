"""Constants: their numbers in a graph's text, to the bit, and what cannot be one."""

import ml_dtypes
import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, GraphError, OptionError, ShapeError, TextError
from graphc.ir.builder import trace
from graphc.ir.contents import MOST_WRITTEN
from graphc.ir.verify import verify

RANDOM = np.random.default_rng(7)


def drawn(dtype, shape):
    """Any bits that the dtype has, so NaN with its payloads, infinities and subnormals, too."""
    if dtype == np.bool_:
        return RANDOM.integers(0, 2, shape).astype(np.bool_)
    size = np.dtype(dtype).itemsize
    return RANDOM.integers(0, 256, (*shape, size), np.uint8).view(dtype)[..., 0]


DTYPES = (
    np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_,
)  # fmt: skip


def contents(value):
    return value.initial.array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (4, 4), (3, 2, 5)])
def test_a_text_gives_the_bits_back(dtype, shape):
    array = drawn(dtype, shape)
    value = g.constant(array, name="c")
    text = g.format_graph(trace({"y": value}))
    again = g.parse_graph(text)
    assert g.format_graph(again) == text
    found = again.states[0]
    assert (found.type, found.role, found.trainable) == (value.type, "constant", False)
    assert contents(found).tobytes() == np.ascontiguousarray(array).tobytes()


def test_few_numbers_are_written_as_short_as_they_can_be():
    def line(array):
        return g.format_graph(trace({"y": g.constant(array, name="c")})).splitlines()[1]

    assert line([0.1, -2.5, -0.0]) == "  @c: f32[3] = constant() {values=(0.1, -2.5, -0.0)}"
    assert line(np.array(1 / 3)) == "  @c: f64[] = constant() {values=(0.3333333333333333,)}"
    assert line([[1, -2]]) == "  @c: i64[1,2] = constant() {values=(1, -2)}"
    assert line(True) == "  @c: b1[] = constant() {values=(True,)}"
    assert "values" in line(np.ones(MOST_WRITTEN))
    assert "base64" in line(np.ones(MOST_WRITTEN + 1))
    assert "base64" in line([np.inf])


def test_equal_constants_are_one_value():
    array = np.arange(6.0).reshape(2, 3)
    first = g.constant(array)
    with g.scope("elsewhere"):
        assert g.constant(array.copy(order="F")) is first
        named = g.constant(array, name="table")
    assert named is not first
    assert named.name == "elsewhere/table"
    others = [array.T, array.astype("float32"), array.reshape(3, 2), array + 1.0]
    assert len({g.constant(other).name for other in [array, *others]}) == 5
    with pytest.raises(GraphError, match="two states are named 'c'"):
        trace({"y": g.constant([1.0], name="c") + g.constant([2.0], name="c")})


def test_a_constant_does_not_change_with_the_array_it_was_made_of():
    array = np.zeros(3)
    value = g.constant(array)
    array[:] = 1.0
    assert contents(value).tolist() == [0.0] * 3
    with pytest.raises(ValueError, match="read-only"):
        contents(value)[0] = 1.0


def test_arrays_and_numbers_become_constants():
    assert str(g.constant([1.5]).type) == "f32[1]"
    assert str(g.constant(np.array([1.5])).type) == "f64[1]"
    assert str(g.constant(np.float16(2)).type) == "f16[]"
    assert str(g.constant([[1], [2]], dtype="int32").type) == "i32[2,1]"
    swapped = g.constant(np.arange(3, dtype=">i4"))
    assert contents(swapped).tolist() == [0, 1, 2]
    assert contents(g.constant([0.1], dtype="float64")).tolist() == [0.1]
    assert contents(g.constant([1e6, np.inf], dtype="bfloat16"))[1] == np.inf


@pytest.mark.parametrize(
    ("given", "dtype", "error", "match"),
    [
        ([[1.0], [1.0, 2.0]], None, OptionError, "lists of equal length"),
        ("text", None, OptionError, "an array of numbers, got 'text'"),
        ([None], None, OptionError, "an array of numbers"),
        ([10**30], None, OptionError, "an array of numbers"),
        ([1j], None, OptionError, "an array of numbers"),
        (np.ma.masked_array([1.0], [True]), None, OptionError, "masked"),
        (np.zeros((0, 2)), None, ShapeError, "empty"),
        (np.zeros(2, np.int8), None, DTypeError, "convert the array, or pass dtype="),
        ([0.5], "int32", DTypeError, "int32 cannot represent"),
        ([300], "uint8", DTypeError, "uint8 cannot represent"),
        ([2], "bool", DTypeError, "bool cannot represent"),
        ([1e6], "float16", DTypeError, "float16 cannot represent"),
        ([1.0], "complex", DTypeError, "unknown dtype"),
    ],
)
def test_unsupported_constants_are_refused(given, dtype, error, match):
    with pytest.raises(error, match=match):
        g.constant(given, dtype=dtype)


LARGE = g.format_graph(trace({"y": g.constant(np.arange(40.0), name="c") * 2.0}))
SMALL = g.format_graph(trace({"y": g.constant([1, 2], name="c") * 2}))


@pytest.mark.parametrize(
    ("text", "old", "new", "match"),
    [
        (LARGE, "base64='AAAA", "base64='AAAB", "changed after writing"),
        (LARGE, "base64='AAAA", "base64='AA!A", "not valid base64"),
        (LARGE, "base64='AAAA", "base64='", "needs 320 bytes, got 317"),
        (LARGE, "f64[40]", "f64[20]", "needs 160 bytes, got 320"),
        (LARGE, "f64[40]", "i64[40]", "changed after writing"),
        (LARGE, "f64[40]", "f64[8,5]", "changed after writing"),
        (LARGE, ", digest=", ", scale=", "needs the details"),
        (LARGE, "base64='AAAA", "values=(1.0,), base64='AAAA", "either values, or base64"),
        (SMALL, "(1, 2)", "(1, 2.0)", "values must be of int64"),
        (SMALL, "(1, 2)", "(1, True)", "values must be of int64"),
        (SMALL, "(1, 2)", f"(1, {2**63})", "values must be of int64"),
        (SMALL, "(1, 2)", "(1,)", "flat list of 2 numbers"),
        (SMALL, "(1, 2)", "1", "flat list of 2 numbers"),
        (SMALL, " {values=(1, 2)}", "", "either values, or base64"),
    ],
)
def test_changed_contents_are_refused(text, old, new, match):
    assert text.count(old) >= 1
    with pytest.raises(TextError, match=match):
        g.parse_graph(text.replace(old, new, 1))


def test_overflowing_floats_and_invalid_bool_bytes_are_refused():
    text = g.format_graph(trace({"y": g.constant(np.float16([1.0]), name="c")}))
    with pytest.raises(TextError, match="values must be of float16"):
        g.parse_graph(text.replace("(1.0,)", "(1e9,)"))
    text = g.format_graph(trace({"y": g.constant([True] * 20, name="c")}))
    with pytest.raises(TextError, match="each byte of a bool"):
        g.parse_graph(text.replace("base64='AQEB", "base64='AgEB"))


def test_no_update_replaces_a_constant():
    x = g.input("x", (2,))
    text = g.format_graph(
        g.plan(g.sum(x * g.parameter("w", (2,))), optimizer=g.optim.SGD(0.1)).graph
    )
    line = next(line for line in text.splitlines() if " @w: " in line)
    changed = text.replace(line, "  @w: f32[2] = constant() {values=(0.0, 0.0)}")
    with pytest.raises(GraphError, match="replaces 'w', which is a constant"):
        verify(g.parse_graph(changed))
