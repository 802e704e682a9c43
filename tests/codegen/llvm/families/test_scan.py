"""Running sums, in the order in which NumPy adds."""

import numpy as np
import pytest
from codegen.llvm.families.natives import run_native

import graphc as g
from graphc.ir.builder import apply
from graphc.ops.scan import Cumsum, CumsumAttributes


def summed(x, axis, exclusive, reverse):
    """One addition after another."""
    x = np.flip(x, axis) if reverse else x
    total = np.zeros(np.delete(x.shape, axis), x.dtype)
    found = []
    for place in range(x.shape[axis]):
        before, total = total, total + x.take(place, axis)
        found.append(before if exclusive else total)
    y = np.stack(found, axis)
    return np.flip(y, axis) if reverse else y


@pytest.mark.parametrize("axis", [0, 1])
def test_the_sign_of_zero_stays(axis):
    x = np.full((18, 20), -0.0, np.float32)
    given = g.input("x", x.shape)
    node = apply(Cumsum, given, attributes=CumsumAttributes(axis, False, False))
    (y,) = run_native(node, {given: x, node.output: np.full(x.shape, 77, np.float32)})
    assert np.signbit(y).all()


@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((37, 701), 1), ((40, 33), 0), ((3, 50, 7, 19), 1), ((2, 16, 48), 2), ((2000,), 0)],
)
def test_order_of_additions(shape, axis, exclusive, reverse):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)
    given = g.input("x", shape)
    node = apply(Cumsum, given, attributes=CumsumAttributes(axis, exclusive, reverse))
    expected = summed(x, axis, exclusive, reverse)
    (y,) = run_native(node, {given: x, node.output: np.full(shape, 77, np.float32)})
    np.testing.assert_array_equal(y, expected)
    (over,) = run_native(node, {given: x, node.output: x}, backwards=True)
    np.testing.assert_array_equal(over, expected)


def test_integers_wrap_around():
    x = np.full((3, 100), 100, np.uint8)
    given = g.input("x", x.shape, "uint8")
    node = apply(Cumsum, given, attributes=CumsumAttributes(1))
    (y,) = run_native(node, {given: x, node.output: x.copy()})
    np.testing.assert_array_equal(y, np.cumsum(x, 1, np.uint8))
