"""Stacks against NumPy, and their errors."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError, ShapeError


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_stack(axis, count):
    rng = np.random.default_rng(0)
    arrays = {f"x{i}": rng.standard_normal((2, 3)).astype(np.float32) for i in range(count)}
    parts = [g.input(name, array.shape) for name, array in arrays.items()]
    found = g.compile(outputs={"y": g.stack(parts, axis)}).step(arrays)["y"]
    np.testing.assert_array_equal(found, np.stack(list(arrays.values()), axis))


def test_stack_of_numbers():
    found = g.compile(outputs={"y": g.stack([g.input("a", ()), g.input("b", ())])})
    np.testing.assert_array_equal(found.step(a=1.0, b=2.0)["y"], [1, 2])


def test_stack_refuses():
    x, y = g.input("x", (2, 3)), g.input("y", (3, 2))
    with pytest.raises(OptionError, match="stack needs at least one value"):
        g.stack([])
    with pytest.raises(ShapeError, match=r"must have one shape, got \[2, 3\], \[3, 2\]"):
        g.stack([x, y])
    with pytest.raises(ShapeError, match="stack: "):
        g.stack([x, x], 3)
    with pytest.raises(ShapeError):
        g.stack([x, g.input("z", (2, 3), "float64")])
