"""Orders, running sums, elements by number and masked softmax, against NumPy."""

import numpy as np
import pytest
from ops.test_every_op import check_gradient, weighted_sum

import graphc as g
from graphc.errors import DTypeError, FeedError, OptionError, ShapeError

RNG = np.random.default_rng(3)
NAN, INF = np.nan, np.inf
FLOATS = [0.0, -0.0, 1.5, NAN, -1.5, INF, 1.5, -INF, -NAN, 0.0, -2.0, 1.5]
WHOLE = {"int64": [-(2**63), 2**63 - 1, 2**32, 2**32 + 1, -(2**32), 0, -1, 2**32], "int32": [
    -(2**31), 2**31 - 1, 0, -1, 5, 5], "uint8": [255, 0, 7, 7]}  # fmt: skip


def run(outputs, **feeds):
    return g.compile(outputs=outputs, poison=True).step(feeds)


def lines(dtype):
    given = WHOLE.get(dtype, FLOATS)
    rows = [np.roll(given, shift) for shift in range(3)]
    return np.stack(rows).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "uint8"])
def test_orders_are_numpys_stable_ones(dtype, axis):
    given = lines(dtype)
    given = given.T if axis == 0 else given
    x = g.input("x", given.shape, dtype)
    found = run({
        "first": g.argmax(x, axis), "last": g.argmin(x, axis, True, True, "int32"),
        **dict(zip(("up", "from"), g.sort(x, axis), strict=True)),
        **dict(zip(("most", "where"), g.top_k(x, 3, axis, dtype="int32"), strict=True)),
    }, x=given)  # fmt: skip
    places = np.argsort(given, axis, kind="stable")
    backwards = given.shape[axis] - 1 - np.flip(given, axis).argmin(axis, keepdims=True)
    largest = largest_places(given, axis)
    np.testing.assert_array_equal(found["first"], given.argmax(axis))
    np.testing.assert_array_equal(found["last"], backwards.astype(np.int32), strict=True)
    np.testing.assert_array_equal(found["from"], places)
    for name, chosen in (("up", places), ("most", largest)):
        wanted = np.take_along_axis(given, chosen, axis)
        np.testing.assert_array_equal(found[name].view(np.uint8), np.ascontiguousarray(wanted)
                                      .view(np.uint8))  # fmt: skip
    np.testing.assert_array_equal(found["where"], largest.astype(np.int32), strict=True)


def largest_places(given, axis):
    """The places of the three largest by Python's sort, which is stable; NaN comes first."""
    found = [
        sorted(range(len(row)), key=lambda i, row=row: (not np.isnan(row[i]), -row[i]))[:3]
        for row in np.moveaxis(given, axis, -1).tolist()
    ]
    return np.moveaxis(np.array(found), -1, axis)


def test_long_lines_and_many_tiles():
    """Lines of more than one tile, and tiles of many lines, before and behind the axis."""
    for shape, axis in (((3, 20000), 1), ((20000, 3), 0), ((50, 40, 30), 1), ((2, 3, 9000), 1)):
        given = RNG.integers(0, 50, shape).astype(np.float32)
        x = g.input("x", shape)
        found = run({
            "places": g.sort(x, axis)[1], "first": g.argmin(x, axis), "sums": g.cumsum(x, axis),
        }, x=given)  # fmt: skip
        np.testing.assert_array_equal(found["places"], np.argsort(given, axis, kind="stable"))
        np.testing.assert_array_equal(found["first"], given.argmin(axis))
        np.testing.assert_array_equal(found["sums"], np.cumsum(given, axis))  # exact below 2²⁴


def test_whole_numbers_add_up_and_wrap():
    given = np.array([[200, 100, 3], [1, 2, 255]], np.uint8)
    x = g.input("x", (2, 3), "uint8")
    found = run({"y": g.cumsum(x, 0), "z": g.cumsum(x, -1, True, True)}, x=given)
    np.testing.assert_array_equal(found["y"], np.cumsum(given, 0, np.uint8), strict=True)
    np.testing.assert_array_equal(found["z"], np.array([[103, 3, 0], [1, 255, 0]], np.uint8))


# --- by number ---


def along(indices, axis):
    """An index of NumPy for elements along an axis."""
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    return (*grid[:axis], indices, *grid[axis + 1 :])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_along_an_axis(axis):
    """Indices that repeat, count from the end, and are shorter than x on other axes."""
    shape = (3, 4, 5)
    short = tuple(7 if i == axis else n - 1 for i, n in enumerate(shape))
    x, u = g.input("x", shape, "float64"), g.input("u", short, "float64")
    i = g.input("i", short, "int32")
    feeds = {
        "x": RNG.uniform(0.5, 2, shape), "u": RNG.uniform(0.5, 2, short),
        "i": RNG.integers(-shape[axis], shape[axis], short).astype(np.int32),
    }  # fmt: skip
    feeds["u"].flat[::5], feeds["x"].flat[::7] = 0.0, 0.0
    reductions = {
        "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "none": None
    }  # fmt: skip
    outputs = {name: g.scatter_elements(x, i, u, axis, name) for name in reductions}
    found = run({**outputs, "y": g.gather_elements(x, i, axis)}, **feeds)
    index = along(feeds["i"], axis)
    np.testing.assert_array_equal(found["y"], feeds["x"][index])
    for name, ufunc in reductions.items():
        wanted = feeds["x"].copy()
        if ufunc is None:
            for place in np.ndindex(short):
                wanted[tuple(np.broadcast_to(n, short)[place] for n in index)] = feeds["u"][place]
        else:
            ufunc.at(wanted, index, feeds["u"])
        np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_gradients_where_tuples_repeat(reduction):
    """Central differences with three updates of one row, factors of 0, and rows of x of 0."""
    indices = np.array([[1, -1], [0, 0], [1, 2], [-1, 2], [0, 1]])
    x, u = g.input("x", (2, 3, 2), "float64"), g.input("u", (5, 2), "float64")
    i = g.input("i", (5, 2), "int64")
    feeds = {"x": RNG.uniform(0.5, 2, (2, 3, 2)), "u": RNG.uniform(0.5, 2, (5, 2)), "i": indices}
    if reduction == "mul":
        feeds["u"][0, 0] = feeds["u"][1, 1] = feeds["x"][0, 0, 0] = feeds["x"][0, 0, 1] = 0.0
    y = g.scatter_nd(x, i, u, reduction)
    check_gradient(weighted_sum([y], "weight"), [x, u], feeds)


def test_second_order_of_products_with_factors_of_0():
    """Derivatives by two factors are the products of the others: one factor of a row is 0, two are,
    three are, x among them or not."""
    factors = np.array([[2.0, 3, 5, 7], [0, 3, 5, 7], [2, 0, 5, 0], [0, 3, 0, 7], [0, 0, 5, 0]])
    rows, each = len(factors), factors.shape[1] - 1
    x, u = g.input("x", (rows,), "float64"), g.input("u", (rows * each,), "float64")
    indices = g.constant(np.repeat(np.arange(rows), each)[:, None])
    dx, du = g.gradient(g.sum(g.scatter_nd(x, indices, u, "mul")), [x, u])
    given = np.arange(1.0, factors.size + 1).reshape(factors.shape)
    along = g.sum(dx * g.constant(given[:, 0])) + g.sum(du * g.constant(given[:, 1:].ravel()))
    ddx, ddu = g.gradient(along, [x, u])
    found = run({"x": ddx, "u": ddu}, x=factors[:, 0], u=factors[:, 1:].ravel())
    wanted = np.zeros(factors.shape)
    for row, i, j in np.ndindex(*factors.shape, each + 1):
        if i != j:
            wanted[row, i] += given[row, j] * np.prod(np.delete(factors[row], [i, j]))
    np.testing.assert_allclose(found["x"], wanted[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found["u"], wanted[:, 1:].ravel(), rtol=1e-12)


def test_equal_extremes_share_the_gradient():
    x, u = g.input("x", (2,), "float64"), g.input("u", (3,), "float64")
    i = g.input("i", (3, 1), "int64")
    y = g.scatter_nd(x, i, u, "max")
    dx, du = g.gradient(g.sum(y), [x, u])
    found = run({"dx": dx, "du": du}, x=np.array([2.0, 1.0]), u=np.array([2.0, 2.0, 0.0]),
                i=np.array([[0], [0], [1]]))  # fmt: skip
    np.testing.assert_allclose(found["dx"], [1 / 3, 1])
    np.testing.assert_allclose(found["du"], [1 / 3, 1 / 3, 0])


def test_take_is_numpys():
    given, indices = RNG.random((3, 4, 5)), np.array([[0, -1], [3, -4], [2, 2]])
    x, i = g.input("x", (3, 4, 5), "float64"), g.input("i", (3, 2), "int64")
    found = run({"y": g.take(x, i, 1), "z": g.take(x, i[0, 0], -2)}, x=given, i=indices)
    np.testing.assert_array_equal(found["y"], np.take(given, indices, 1))
    np.testing.assert_array_equal(found["z"], given[:, 0])


def test_many_lookups():
    """More than are worked on at a time, in every entry of a batch."""
    given, indices = RNG.random((3, 11, 2)), RNG.integers(-11, 11, (3, 9000, 1))
    x, i = g.input("x", given.shape, "float64"), g.input("i", indices.shape, "int64")
    y = g.gather_nd(x, i, 1)
    found = run({"y": y, "back": g.scatter_nd(x, i, y, "add", 1)}, x=given, i=indices)
    rows = given[np.arange(3)[:, None], indices[..., 0]]
    wanted = given.copy()
    np.add.at(wanted, (np.arange(3)[:, None], indices[..., 0]), rows)
    np.testing.assert_array_equal(found["y"], rows)
    np.testing.assert_array_equal(found["back"], wanted)


def test_each_number_of_a_tuple_has_its_own_limit():
    x, i = g.input("x", (2, 5)), g.input("i", (3, 2), "int32")
    program = g.compile(outputs={"y": g.gather_nd(x, i)})
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(2, 5)}
    program.step(feeds, i=np.array([[-2, 4], [1, -5], [0, 0]], np.int32))
    for bad, bounds in (([2, 0], r"\[-2, 2\)"), ([0, 5], r"\[-5, 5\)"), ([0, -6], r"\[-5, 5\)")):
        with pytest.raises(FeedError, match=f"input 'i'.* gather_nd.*{bounds}"):
            program.step(feeds, i=np.array([[0, 0], [0, 0], bad], np.int32))
    shifted = g.compile(outputs={"y": g.gather_nd(x, i + g.full((), 1, "int32"))})
    shifted.step(feeds, i=np.array([[0, 3]] * 3, np.int32))
    with pytest.raises(FeedError, match=r"the computed value .*\[-2, 2\)"):
        shifted.step(feeds, i=np.array([[1, 3]] * 3, np.int32))


def test_both_kinds_of_bounds_hold_for_one_input():
    x, i = g.input("x", (6, 2)), g.input("i", (4,), "int32")
    program = g.compile(outputs={"y": g.gather(x, i), "z": g.take(x[:3], i[:2])})
    feeds = {"x": np.zeros((6, 2), np.float32)}
    program.step(feeds, i=np.array([0, 2, 5, 3], np.int32))
    for bad, bounds in (([0, 3, 0, 0], r"\[-3, 3\)"), ([-1, 0, 0, 0], r"\[0, 6\)")):
        with pytest.raises(FeedError, match=bounds):
            program.step(feeds, i=np.array(bad, np.int32))


def test_places_that_an_op_found_are_not_checked_again():
    x = g.input("x", (4, 6))
    values, places = g.top_k(x, 2, 1)
    loss = g.sum(values) + g.sum(g.gather_elements(x * x, places, 1)) + g.mean(
        g.one_hot(g.argmax(x, 1), 6))  # fmt: skip
    (dx,) = g.gradient(loss, [x])
    program = g.compile(outputs={"dx": dx})
    from graphc.runtime.index_ranges import IndexRanges

    assert IndexRanges(program.graph).computed == {}
    narrower = g.compile(outputs={"y": g.one_hot(g.argmax(x, 1), 5)})
    assert len(IndexRanges(narrower.graph).computed) == 1
    given = RNG.random((4, 6)).astype(np.float32)
    chosen = np.argsort(-given, 1)[:, :2]
    wanted = np.zeros_like(given)
    np.put_along_axis(wanted, chosen, 1 + 2 * np.take_along_axis(given, chosen, 1), 1)
    np.testing.assert_allclose(program.step(x=given)["dx"], wanted, rtol=1e-6)


# --- masked softmax ---


def test_a_line_without_any_element_is_0_and_gets_no_gradient():
    x, m = g.input("x", (2, 3, 4)), g.input("m", (3, 4), "bool")
    y = g.masked_softmax(x, m)
    (dx,) = g.gradient(g.sum(y * y), [x])
    (ddx,) = g.gradient(g.sum(dx * dx), [x])
    given = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    given[0, 0, 0], given[1, 1, 3], given[0, 2] = NAN, INF, -INF
    mask = np.array([[False, True, True, False], [False] * 4, [True] * 4])
    found = run({"y": y, "dx": dx, "ddx": ddx}, x=given, m=mask)
    for array in found.values():
        assert np.isfinite(array).all()
        assert not array[:, ~mask].any()
        assert not array[0, 2].any()
    np.testing.assert_allclose(found["y"][:, 0].sum(-1), 1, rtol=1e-6)
    weights = np.exp(given[1, 2].astype(np.float64))
    np.testing.assert_allclose(found["y"][1, 2], weights / weights.sum(), rtol=1e-6)


# --- refusals ---


def test_operands_that_do_not_fit_are_refused():
    x, i = g.input("x", (3, 4)), g.input("i", (2, 4), "int32")
    b = g.input("b", (3, 4), "bool")
    wrong = (
        (ShapeError, "k must not exceed", lambda: g.top_k(x, 5)),
        (OptionError, "k must be an integer", lambda: g.top_k(x, 0)),
        (ShapeError, "axis 2", lambda: g.argmax(x, 2)),
        (OptionError, "dtype of places", lambda: g.argmin(x, 0, dtype="uint8")),
        (DTypeError, "bool cannot be summed", lambda: g.cumsum(b, 0)),
        (DTypeError, "any: x must be bool", lambda: g.any(x)),
        (DTypeError, "all: x must be bool", lambda: g.all(x)),
        (DTypeError, "must be integers", lambda: g.take(x, x)),
        (ShapeError, "no axis except 1 may exceed",
         lambda: g.gather_elements(x, g.reshape(i, (4, 2)), 1)),
        (ShapeError, "shape of indices", lambda: g.scatter_elements(x, i, x, 0)),
        (ShapeError, "an index tuple must not be longer", lambda: g.gather_nd(x, i)),
        (ShapeError, "equal first", lambda: g.gather_nd(x, i, 1)),
        (ShapeError, "updates must have", lambda: g.scatter_nd(x, i[:, :1], x)),
        (OptionError, "reduction", lambda: g.scatter_nd(x, i[:, :1], x[:2], "mean")),
        (DTypeError, "bool supports only",
         lambda: g.scatter_nd(b, i[:, :1], b[:2], "add")),
        (DTypeError, "the mask must be bool", lambda: g.masked_softmax(x, x)),
        (ShapeError, "does not broadcast", lambda: g.masked_softmax(x[0], b)),
    )  # fmt: skip
    for error, message, make in wrong:
        with pytest.raises(error, match=message):
            make()
