import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

import graphc as g
from graphc.byte_sizes import format_bytes, parse_bytes
from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.ir.types import DTYPES, as_dtype, contiguous_strides, tensor_type


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_dtypes_have_names_short_names_and_numpy_twins(dtype):
    assert as_dtype(dtype.name) is as_dtype(dtype.short) is as_dtype(dtype.numpy) is dtype
    assert dtype.itemsize == dtype.numpy.itemsize


def test_bfloat16_comes_through_ml_dtypes():
    assert as_dtype("bfloat16").numpy == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("given", ["float8", complex, object(), "complex64", None])
def test_unknown_dtype_lists_the_known_ones(given):
    with pytest.raises(DTypeError, match="float32, float16"):
        as_dtype(given)


def test_bytes_and_strides():
    type = tensor_type((2, 3, 4), "float16")
    assert (type.elements, type.bytes, type.rank) == (24, 48, 3)
    assert contiguous_strides(type) == (24, 8, 2)
    assert tensor_type((), "float64").bytes == 8
    assert tensor_type(5, "uint8").shape == (5,)
    assert tensor_type(np.array([2, 3]), "int32").shape == (2, 3)


@pytest.mark.parametrize("shape", [(0, 3), (2, -1), (2.5, 1), "ab", (None,), 1.5])
def test_bad_shapes(shape):
    with pytest.raises(ShapeError):
        g.input("x", shape)


def test_an_empty_batch_says_why():
    with pytest.raises(ShapeError, match="of at least 1"):
        g.input("x", (0, 784))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (7 * 2**30, "7.00 GiB"),
        (2**42, "4.00 TiB"),
    ],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text == format_bytes(count, up=True)


@drawn(st.integers(0, 2**43))
def test_sizes_that_are_rounded_up_suffice_as_budgets(count):
    shown = format_bytes(count, up=True)
    assert count <= parse_bytes("budget", shown) <= count * 1.01 + 11


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("7GiB", 7 * 1024**3),
        ("7gib", 7 * 1024**3),
        (" 1.5 kib", 1536),
        ("2gb", 2 * 1000**3),
        ("3b", 3),
        ("1e3", 1000),
        (12, 12),
    ],
)
def test_sizes_have_units_in_any_case(given, size):
    assert parse_bytes("budget", given) == size


@pytest.mark.parametrize("given", [1.5, "1.5", "7G", "gib", "nan", "inf", -1, True, "9e30"])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(OptionError, match="budget must be a size such as 7GiB"):
        parse_bytes("budget", given)


def test_sizes_that_are_too_large_are_called_so():
    with pytest.raises(OptionError, match=r"got '9{23}', which is too large: the limit is 2\*\*63"):
        parse_bytes("--budget", "9" * 23)
