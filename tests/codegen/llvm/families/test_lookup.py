"""Rows of tables by number, and sums of rows, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from codegen.llvm.families.natives import run_native
from codegen.on_cpu import aligned

import graphc as g
from graphc.codegen.llvm.families import lookup
from graphc.ir.builder import apply
from graphc.ops.embedding import Gather, GatherGradient, RowsAttributes


def written(node, feeds, result):
    """What the native kernels write into an array."""
    arrays = dict(zip((*node.inputs, node.output), (*feeds, result), strict=True))
    return run_native(node, arrays)[0]


def sums(rows, numbers, dy, begun=None):
    """Rows of dy added up in the table's dtype, one after another."""
    given = [g.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate((dy, numbers))]
    shape = (rows, *dy.shape[1:])
    attributes = RowsAttributes(rows, accumulate=begun is not None)
    more = [] if begun is None else [g.input("begun", shape, dy.dtype.name)]
    node = apply(GatherGradient, *given, *more, attributes=attributes)
    target = np.full(shape, 77, dy.dtype) if begun is None else begun
    return written(node, (dy, numbers, *([target] if more else [])), target)


@pytest.mark.parametrize(("rows", "columns"), [(3, 300), (200, 67), (70, 1)])
def test_rows_are_added_in_the_order_of_their_lookups(rows, columns):
    rng = np.random.default_rng(rows)
    numbers = rng.integers(0, rows, 500).astype(np.int32)
    dy = (rng.standard_normal((500, columns)) * 10.0 ** rng.integers(-3, 4, (500, 1))).astype("f4")
    expected = np.zeros((rows, columns), np.float32)
    for number, row in zip(numbers, dy, strict=True):
        expected[number] += row
    np.testing.assert_array_equal(sums(rows, numbers, dy), expected)
    begun = rng.standard_normal((rows, columns)).astype(np.float32)
    expected = begun.copy()
    for number, row in zip(numbers, dy, strict=True):
        expected[number] += row
    np.testing.assert_array_equal(sums(rows, numbers, dy, begun), expected)


def test_sums_of_narrow_floats_are_rounded_once():
    dy = np.full((4096, 3), 1.0, ml_dtypes.bfloat16)
    found = sums(2, np.zeros(4096, np.int64), dy)
    assert found.astype(np.float32).tolist() == [[4096.0] * 3, [0.0] * 3]


@pytest.mark.parametrize("columns", [48, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_zeros_that_go_around_caches(dtype, columns, monkeypatch):
    monkeypatch.setattr(lookup, "STREAMED_BYTES", 0)
    numbers, dy = np.array([5, 90, 5]), np.ones((3, columns), dtype)
    given = [g.input("dy", dy.shape, dtype), g.input("numbers", (3,), "int64")]
    node = apply(GatherGradient, *given, attributes=RowsAttributes(100))
    found = written(node, (dy, numbers), aligned(np.full((100, columns), 77, dtype)))
    expected = np.zeros((100, columns), dtype)
    expected[5], expected[90] = 2, 1
    np.testing.assert_array_equal(found, expected)


def test_numbers_out_of_range_read_the_nearest_row_and_are_added_to_none():
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    numbers = np.array([-7, 3, 1, 2**40])
    given = [g.input("table", table.shape), g.input("numbers", (4,), "int64")]
    y = written(apply(Gather, *given), (table, numbers), np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(y, table[[0, 2, 1, 2]])
    dy = np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(sums(3, numbers, dy), [[0, 0], [1, 1], [0, 0]])
