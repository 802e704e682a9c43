"""What samples do not draw: NaN, zeros of both signs, lines without elements, numbers outside."""

import numpy as np
import pytest
from codegen.on_cpu import Library, aligned, generated, kernels_in
from ops.test_order import FLOATS
from ops.test_strides import run

import graphc as g

ROWS = np.stack([np.roll(FLOATS, shift) for shift in range(3)] + [[np.nan] * 12]).astype(np.float32)
MASK = np.array([~np.isnan(ROWS[0]), [False] * 12, ROWS[2] == -np.inf, [True] * 11 + [False]])


def nodes():
    """Name → a node and what it reads."""
    x, m = g.input("x", ROWS.shape), g.input("m", ROWS.shape, "bool")
    long = g.input("long", (3, 300))
    repeated = np.tile(ROWS[:3], 25)
    given = {x: ROWS, m: MASK, long: repeated}
    made = {
        "argmax": g.argmax(x, 1), "argmin": g.argmin(x, 1), "last": g.argmax(x, 1, last=True),
        "down": g.top_k(x, 12, 1)[0], "up": g.sort(x, 0)[0], "merged": g.top_k(long, 300)[0],
        "masked": g.masked_softmax(x, m), "min": g.min(x, 1), "any": g.any(m, 1),
        "all": g.all(m, 1),
    }  # fmt: skip
    return {
        name: (y.node, {v: aligned(given[v]) for v in y.node.inputs}) for name, y in made.items()
    }


@pytest.fixture(scope="module")
def built():
    """All nodes with their arrays, and their kernels."""
    prepared = {}
    for name, (node, arrays) in nodes().items():
        outputs = {v: aligned(np.zeros(v.shape, v.type.dtype.numpy)) for v in node.outputs}
        prepared[name] = node, arrays | outputs
    found = {name: generated(node, arrays) for name, (node, arrays) in prepared.items()}
    library = Library(kernels_in(list(found.values())))
    return {name: (*prepared[name], found[name]) for name in found}, library


@pytest.mark.parametrize("name", nodes())
def test_kernels_agree_with_numpys(name, built):
    prepared, library = built
    node, arrays, found = prepared[name]
    wanted = run(node, dict(arrays))
    library.run(found, arrays)
    for value, expected in zip(node.outputs, wanted, strict=True):
        if name == "masked":
            np.testing.assert_allclose(arrays[value], expected, rtol=1e-6)
            assert not arrays[value][~MASK].any()
        else:
            np.testing.assert_array_equal(arrays[value], expected, strict=True)
        if name in ("down", "up", "merged"):
            np.testing.assert_array_equal(np.signbit(arrays[value]), np.signbit(expected))


def test_numbers_outside_read_the_nearest_row_and_write_nothing():
    """As computed numbers may be, which no step on a GPU checks."""
    x, i = g.input("x", (3, 2)), g.input("i", (5, 1), "int32")
    u = g.input("u", (5, 2))
    given = {
        x: aligned(np.arange(6, dtype=np.float32).reshape(3, 2)),
        i: aligned(np.array([[-4], [3], [-3], [2], [2**31 - 1]], np.int32)),
        u: aligned(np.full((5, 2), 10, np.float32)),
    }
    read, written = g.gather_nd(x, i).node, g.scatter_nd(x, i, u, "add").node
    arrays = {**given, **{
        n.output: aligned(np.zeros(n.output.shape, np.float32)) for n in (read, written)
    }}  # fmt: skip
    found = [
        generated(n, {v: arrays[v] for v in (*n.inputs, n.output)}) for n in (read, written)
    ]  # fmt: skip
    library = Library(kernels_in(found))
    for each in found:
        library.run(each, arrays)
    np.testing.assert_array_equal(arrays[read.output], given[x][[0, 2, 0, 2, 2]])
    np.testing.assert_array_equal(arrays[written.output], given[x] + [[10], [0], [10]])
