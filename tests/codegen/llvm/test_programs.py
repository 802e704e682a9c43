"""Programs of ops as native kernels, against graphc's NumPy kernels in float64."""

import loops
import numpy as np
import pytest
from codegen.cases import LAST, LONG, SCALAR, all_cases, by_op
from codegen.checks import check
from codegen.llvm.native import Native
from codegen.on_cpu import apart, places_of

import graphc as g
from graphc.codegen.native import native_calls
from graphc.codegen.rules import gives_programs
from graphc.ops.reduce import square_sum

CASES = [c for c in all_cases() if gives_programs(c.node.op)]
SHORT = {sample.op for sample in LONG}


def is_first(case):
    """Whether no other case has the same kernels in another dtype or layout."""
    if case.node.op.name in SCALAR or " float32 " not in f"{case.name} ":
        return case.node.outputs[0].type.dtype.kind == "int" and case.layout == "dense"
    return case.layout in ("dense", "over", LAST) or (
        case.layout == "axis1" and case.node.op.name in SHORT
    )


def written(node, arrays):
    return native_calls(node, places_of(arrays))


@pytest.mark.parametrize("cases", by_op(CASES, lambda case: not is_first(case)))
def test_native_kernels_of_an_op_equal_numpy(cases):
    for case in cases:
        with loops.case(case.name):
            arrays = case.arrays()
            check(case, arrays, written(case.node, arrays), Native())


def results(node, arrays):
    Native().run(written(node, arrays), arrays)
    return [arrays[value] for value in node.outputs]


def filled(node, arrays):
    return arrays | {v: np.zeros(v.shape, v.type.dtype.numpy) for v in node.outputs}


ROWS = {
    "one row": ((70_001,), None),
    "few rows": ((3, 50_003), 1),
    "rows": ((40, 5_003), 1),
    "short rows": ((3_000, 7), 1),
    "columns": ((50_003, 3), 0),
    "many columns": ((301, 1_111), 0),
    "between": ((3, 9_001, 20), 1),
    "around": ((30, 5, 601), (0, 2)),
}


@pytest.mark.parametrize("combine", ["sum", "max"])
@pytest.mark.parametrize("shape", ROWS.values(), ids=ROWS)
def test_lines_of_any_length(shape, combine):
    shape, axes = shape
    array = np.random.default_rng(3).standard_normal(shape).astype(np.float32) + 1
    x = g.input("x", shape)
    node = (getattr(g, combine)(x) if axes is None else getattr(g, combine)(x, axes)).node
    (y,) = results(node, filled(node, {x: array}))
    if combine == "max":
        np.testing.assert_array_equal(y, array.max(axes))
    else:
        exact = array.astype(np.float64).sum(axes)
        np.testing.assert_allclose(y, exact, rtol=0, atol=3e-7 * np.abs(array).sum(axes).max())


@pytest.mark.parametrize("shape", [(2, 3, 5, 601), (4, 40, 3, 70), (1, 1, 300, 300)])
@pytest.mark.parametrize("axes", [(1, 2, 3), (0, 2, 3), (2, 3), (0, 1, 2, 3)])
def test_strides_decide_nothing_of_a_sum(shape, axes):
    """A tensor whose axes do not run on is added up in the order of one that lies in one piece."""
    array = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    x = g.input("x", shape)
    node = g.sum(x, axes).node
    found = []
    for axis in range(4):
        (y,) = results(node, filled(node, {x: apart(array, axis) if axis else array}))
        found.append(np.array(y))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.uint32), other.view(np.uint32))


def test_a_sum_of_millions_is_as_good_as_its_elements():
    x = g.input("x", (3_000_000,))
    array = np.full(3_000_000, 0.1, np.float32)
    node = g.sum(x).node
    (y,) = results(node, filled(node, {x: array}))
    assert abs(float(y) / (3e6 * float(np.float32(0.1))) - 1) < 1e-6


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_variance_beside_a_large_mean(layout):
    """Two passes: the squares of x alone would leave nothing of it."""
    shape = (64, 3_000) if layout == "rows" else (3_000, 64)
    array = (np.random.default_rng(5).standard_normal(shape) + 1000).astype(np.float32)
    channels = 64
    frame = (1, channels, 3_000) if layout == "rows" else (3_000, channels)
    x = g.input("x", frame)
    node = g.batch_norm(x, name="norm").node
    while node.op.name != "batch_norm":
        node = node.inputs[0].node
    rng = np.random.default_rng(0)
    arrays = {v: rng.standard_normal(v.shape).astype(np.float32) for v in node.inputs}
    arrays[node.inputs[0]] = array.reshape(frame)
    _, mean, inverse = results(node, filled(node, arrays))[:3]
    along = 1 if layout == "rows" else 0
    wide = array.astype(np.float64)
    np.testing.assert_allclose(mean.ravel(), wide.mean(along), rtol=1e-7)
    expected = 1 / np.sqrt(wide.var(along) + node.attributes.epsilon)
    np.testing.assert_allclose(inverse.ravel(), expected, rtol=1e-6)


def test_nan_and_infinity_go_through():
    array = np.random.default_rng(6).standard_normal((5, 100)).astype(np.float32)
    array[0, 50], array[1, 99], array[2, 0], array[3, 7] = np.nan, np.inf, -np.inf, np.nan
    x = g.input("x", array.shape)
    for combine in ("max", "min", "sum"):
        for axis in (0, 1):
            node = getattr(g, combine)(x, axis).node
            (y,) = results(node, filled(node, {x: array}))
            with np.errstate(invalid="ignore"):
                expected = getattr(array.astype(np.float64), combine)(axis)
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_one_text_serves_all_sizes():
    """Extents, counts and strides are numbers that a kernel is given."""
    found = []
    for shape in ((40, 768), (700, 1024)):
        made = g.layer_norm(g.input("x", shape))
        node = made.node
        arrays = {v: np.zeros(v.shape, np.float32) for v in (*node.inputs, *node.outputs)}
        found.append(written(node, arrays).calls)
    (one,), (other,) = found
    assert one.kernel is other.kernel
    assert one.numbers != other.numbers


def test_pieces_of_rows_are_the_same_on_every_machine():
    x = g.input("x", (1_000_000,))
    node = square_sum(x).node
    arrays = {v: np.zeros(v.shape, np.float32) for v in (x, *node.outputs)}
    found = written(node, arrays)
    assert [call.pieces for call in found.calls] == [32, 1]
    assert [type.shape for type in found.scratch] == [(32,)]
