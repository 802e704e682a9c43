"""Native random ops draw what NumPy's kernels draw, bit for bit."""

import numpy as np
import pytest
from codegen.llvm.families.natives import run_native
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.ir.builder import apply
from graphc.ops.random import (
    Dropout,
    DropoutAttributes,
    Normal,
    NormalAttributes,
    Uniform,
    UniformAttributes,
)

COUNTERS = {
    "small": ((5, 6), 3),
    "beyond 32 bits": ((2**33 + 7, -1), 2**32 + 1),
}


def both(node, feeds, in_place=False):
    """What the native kernels and NumPy's give."""
    y = next(iter(feeds.values())) if in_place else np.full(node.output.shape, 77)
    arrays = feeds | {node.output: y if in_place else y.astype(node.output.type.dtype.numpy)}
    wanted = run_numpy(node, {v: a.copy() for v, a in arrays.items()})[0]
    found = run_native(node, arrays, backwards=True)
    return found[0].astype(np.float64), wanted.astype(np.float64)


def counters(name):
    (first, second), step = COUNTERS[name]
    given = {"seed": np.array([first, second], np.int64), "step": np.array(step, np.int64)}
    return {g.input(key, a.shape, "int64"): a for key, a in given.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", COUNTERS)
def test_dropout(name, dtype):
    x = g.input("x", (3, 7001), dtype)
    values = np.random.default_rng(0).standard_normal(x.shape).astype(x.type.dtype.numpy)
    feeds = {x: values} | counters(name)
    node = apply(Dropout, *feeds, attributes=DropoutAttributes(0.3, 2**32 - 1))
    found, wanted = both(node, feeds)
    np.testing.assert_array_equal(found, wanted)
    assert (found == 0).mean() == pytest.approx(0.3, abs=0.02)
    again, _ = both(node, feeds, in_place=True)
    np.testing.assert_array_equal(again, found)


def test_dropout_drops_nan_and_keeps_what_it_need_not_drop():
    x = g.input("x", (130,))
    feeds = {x: np.full(130, np.nan, np.float32)} | counters("small")
    most = apply(Dropout, *feeds, attributes=DropoutAttributes(1 - 2**-24, 1))
    assert (both(most, feeds)[0] == 0).all()
    least = apply(Dropout, *feeds, attributes=DropoutAttributes(1e-9, 1))
    assert np.isnan(both(least, feeds)[0]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_uniform(dtype):
    feeds = counters("beyond 32 bits")
    node = apply(Uniform, *feeds, attributes=UniformAttributes((13, 701), dtype, -3.0, 0.1, 9))
    found, wanted = both(node, feeds)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal(dtype):
    """NumPy's logarithm, sine and cosine are others, and as good."""
    feeds = counters("small")
    node = apply(Normal, *feeds, attributes=NormalAttributes((13, 701), dtype, 0.5, 2.0, 9))
    found, wanted = both(node, feeds)
    bound = 4e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)
