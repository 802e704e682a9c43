"""Native pooling over windows of any shape, against NumPy's kernels and plain loops."""

import ml_dtypes
import numpy as np
import pytest
from codegen.llvm.families.natives import run_native
from codegen.on_cpu import channels_last
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.ir.builder import apply
from graphc.ops.pool import (
    AveragePool2d,
    AveragePool2dGradient,
    MaxPool2d,
    MaxPool2dGradient,
    MaxPool2dSelect,
    Pool2dAttributes,
    Pool2dGradientAttributes,
)

WINDOWS = {
    # extents (n, c, h, w), window, stride, padding, dilation
    "3x3 by 2": ((2, 3, 9, 75), (3, 3), (2, 2), (1, 1), (1, 1)),
    "2x2 by 2": ((1, 70, 8, 40), (2, 2), (2, 2), (0, 0), (1, 1)),
    "3x3 by 1": ((1, 2, 6, 51), (3, 3), (1, 1), (1, 1), (1, 1)),
    "apart by 3": ((2, 3, 7, 110), (2, 3), (2, 3), (1, 1), (1, 2)),
    "stride and dilation share a factor": ((1, 2, 20, 60), (3, 3), (4, 6), (2, 3), (2, 4)),
    "gaps between windows": ((1, 2, 11, 93), (1, 2), (3, 5), (0, 0), (1, 1)),
    "uneven sides": ((1, 19, 6, 37), (3, 4), (2, 2), (0, 1, 2, 3), (1, 1)),
    "everything": ((3, 20, 7, 7), (7, 7), (7, 7), (0, 0), (1, 1)),
    "one row": ((2, 5, 1, 300), (1, 9), (1, 2), (0, 4), (1, 1)),
}


def nodes(shape, geometry, dtype):
    """A node of each op over these windows, by name."""
    window, stride, padding, dilation = geometry
    forward = Pool2dAttributes(window, stride, padding, dilation)
    back = Pool2dGradientAttributes(window, stride, padding, shape[2:], dilation)
    x = g.input("x", shape, dtype)
    largest = apply(MaxPool2d, x, attributes=forward)
    y, place = (g.input(f"y{i}", v.shape, v.type.dtype) for i, v in enumerate(largest.outputs))
    return {
        "max": largest,
        "select": apply(MaxPool2dSelect, x, place, attributes=forward),
        "max gradient": apply(MaxPool2dGradient, y, place, attributes=back),
        "average": apply(AveragePool2d, x, attributes=forward),
        "average gradient": apply(AveragePool2dGradient, y, attributes=back),
    }


def filled(values, like, dtype, place, seed):
    rng = np.random.default_rng(seed)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return {
        v: place if place is not None and v.type.dtype.name == "uint8"
        else like(rng.integers(-3, 4, v.shape).astype(kind))
        for v in values
    }  # fmt: skip


def check(node, feeds, like):
    """The native kernels of a node against NumPy's, to the bit."""
    fresh = {v: np.full(v.shape, 77, v.type.dtype.numpy) for v in node.outputs}
    arrays = feeds | {v: like(a) for v, a in fresh.items()}
    results = run_native(node, arrays)
    wanted = run_numpy(node, {v: a.copy() for v, a in (feeds | fresh).items()})
    for result, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result.astype(float), expected.astype(float))
    return results


@pytest.mark.parametrize("like", [np.ascontiguousarray, channels_last])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, like):
    shape, *geometry = WINDOWS[name]
    made = nodes(shape, geometry, "float32")
    x = filled(made["max"].inputs, like, "float32", None, 1)
    _, place = check(made["max"], x, like)
    for op in ("select", "max gradient", "average", "average gradient"):
        check(made[op], filled(made[op].inputs, like, "float32", place, 2), like)


def test_averages_are_rounded_as_numpys():
    shape, *geometry = WINDOWS["3x3 by 2"]
    node = nodes(shape, geometry, "float32")["average"]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check(node, {node.inputs[0]: x}, np.ascontiguousarray)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("like", [np.ascontiguousarray, channels_last])
def test_nan_goes_through_and_the_first_of_equals_is_kept(like, dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.zeros((1, 17, 4, 40), kind)
    x[0, :, 1, 3], x[0, :, 0, 2], x[0, :, 2, 9] = np.nan, 5, -np.inf
    x[0, :, :, 30:] = -np.inf
    node = nodes(x.shape, ((2, 2), (2, 2), (0, 0), (1, 1)), dtype)["max"]
    y, place = check(node, {node.inputs[0]: like(x)}, like)
    assert np.isnan(y[0, 0, 0, 1].astype(float))
    assert place[0, 0].tolist() == [[0] * 20] * 2  # 5 beat -inf first, before the NaN came
    assert (y[0, :, :, 15:].astype(float) == -np.inf).all()


def test_a_gradient_adds_windows_in_the_order_of_their_places():
    """In float32 the sums of these numbers depend on their order."""
    node = nodes((1, 1, 1, 40), ((1, 5), (1, 1), (0, 2), (1, 1)), "float32")["average gradient"]
    dy = np.random.default_rng(0).standard_normal((1, 1, 1, 40)).astype(np.float32)
    dy *= 10.0 ** np.random.default_rng(1).integers(-4, 5, 40).astype(np.float32)
    dx = np.zeros(40, np.float32)
    for tap in range(5):
        for window in range(40):
            if 0 <= window + tap - 2 < 40:
                dx[window + tap - 2] += dy[0, 0, 0, window]
    (found,) = check(node, {node.inputs[0]: dy}, np.ascontiguousarray)
    np.testing.assert_array_equal(found[0, 0, 0], dx / np.float32(5))
