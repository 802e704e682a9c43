"""Indices give what NumPy's do, and what is refused says what to write instead."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, FeedError, OptionError, ShapeError
from graphc.ir.builder import trace

X = np.arange(120.0).reshape(4, 5, 6)
ROWS = np.array([[3, 0, 1], [1, 1, 2]], np.int32)

INDICES = {
    "a new axis": np.s_[:, None],
    "new axes alone": np.s_[None, ..., None],
    "beside an integer": np.s_[None, 1, ..., None, 2:4],
    "backwards": np.s_[::-1],
    "backwards by two": np.s_[:, -1:0:-2, ::-1],
    "backwards, one element": np.s_[2:1:-1],
    "steps that go too far": np.s_[::-100, ::100],
    "a list": np.s_[[2, 0, -1]],
    "a list along an inner axis": np.s_[1:, :, [5, 0, 0]],
    "an array of two axes": np.s_[:, ROWS],
    "an array after an integer": np.s_[1, ROWS],
    "an array beside a new axis": np.s_[None, ..., ROWS, None],
    "two arrays": np.s_[:, ROWS, ROWS[:1]],
    "two lists, and an axis before them": np.s_[None, [0, -1], [1, 2], None],
    "apart": np.s_[ROWS, :, ROWS],
    "apart behind an axis": np.s_[None, 1:, [0, -1], None, [1, 2]],
    "apart by no axes": np.s_[:, [0, -1], ..., [1, 2], None],
    "apart from an integer": np.s_[1, :, ROWS],
    "apart from an integer behind": np.s_[[0, -1], ::-2, 1],
    "apart from an integer by a new axis": np.s_[:, 2, None, ROWS],
    "an integer between": np.s_[[0, -1], 2, [1, 2]],
    "an integer beside": np.s_[:, 2, ROWS],
    "a NumPy integer": np.s_[np.int64(-1), ..., np.uint8(3)],
}


def computed(build, **feeds):
    values = {name: g.input(name, x.shape, x.dtype) for name, x in feeds.items()}
    return g.compile(outputs={"y": build(**values)}, poison=True).step(feeds)["y"]


def test_indices_give_what_numpys_do():
    x = g.input("x", X.shape, "float64")
    outputs = {f"y{i}": x[index] for i, index in enumerate(INDICES.values())}
    found = g.compile(outputs=outputs, poison=True).step(x=X)
    for name, y, index in zip(INDICES, found.values(), INDICES.values(), strict=True):
        assert y.shape == X[index].shape, name
        assert (y == X[index]).all(), name


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_tensor_of_integers_takes_elements_along_an_axis(axis):
    index = (slice(None),) * axis
    assert (computed(lambda x, i: x[(*index, i)], x=X, i=ROWS) == X[(*index, ROWS)]).all()


def test_the_gradient_goes_to_the_elements_that_were_taken():
    x, i, w = g.input("x", (4, 5), "float64"), g.input("i", (3,), "int32"), X[0, :3, :4].T
    (dx,) = g.gradient(g.sum(x[::-1, i] * g.constant(w)), [x])
    numbers = np.array([4, 1, 4], np.int32)
    expected = np.zeros((4, 5))
    np.add.at(expected, (slice(None), numbers), w[::-1])
    assert (g.compile(outputs={"dx": dx}).step(i=numbers)["dx"] == expected).all()


def test_the_gradient_of_tensors_that_stand_apart():
    x, i = g.input("x", (3, 4, 5), "float64"), np.array([2, 0, 2])
    w = np.arange(12.0).reshape(3, 4)
    (dx,) = g.gradient(g.sum(x[i, :, [1, 1, 1]] * g.constant(w)), [x])
    expected = np.zeros(x.shape)
    np.add.at(expected, (i, slice(None), [1, 1, 1]), w)
    assert (g.compile(outputs={"dx": dx}).step()["dx"] == expected).all()


def test_basic_indexing_gives_a_view():
    x = g.input("x", X.shape)
    for index in (np.s_[:, None], np.s_[1:3, ..., ::2, None], np.s_[0]):
        plan = g.plan(outputs={"y": x[index] + 1.0})
        assert {n.op.name for n in plan.graph.nodes} <= {"slice", "reshape", "shift"}
    assert x[...].node.op.name == "slice"
    assert [node.op.name for node in trace({"y": x[None]}).nodes] == ["reshape"]


def test_numbers_that_are_fed_are_checked():
    x, i, j = g.input("x", (4, 2)), g.input("i", (2,), "int64"), g.input("j", (2,), "int32")
    program = g.compile(outputs={"y": x[i, j]})
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(4, 2), "j": np.array([1, 0], np.int32)}
    assert program.step(feeds, i=np.array([0, -1]))["y"].tolist() == [1, 6]
    with pytest.raises(FeedError, match="from 0 to 4"):
        program.step(feeds, i=np.array([0, 4]))


V = g.input("v", (4, 5))


@pytest.mark.parametrize(
    ("index", "error", "match"),
    [
        (V > 0, OptionError, r"graphc\.where\(mask, x, 0\.0\)"),
        (np.ones(4, bool), OptionError, "numpy.flatnonzero"),
        (True, OptionError, "an index must be an integer"),
        (V, DTypeError, "an index tensor must be of integers"),
        ([0.5], DTypeError, "an index tensor must be of integers"),
        (([0, 1], [1, 2, 3]), ShapeError, "do not broadcast"),
        ([4], ShapeError, "out of range for an axis of 4"),
        ([-5], ShapeError, "out of range for an axis of 4"),
        ([], ShapeError, "empty"),
        (slice(3, 3), ShapeError, "is empty"),
        (slice(0, 3, -1), ShapeError, "is empty"),
        (slice(None, None, 0), OptionError, "step cannot be zero"),
        (slice("a", None), OptionError, "slice indices must be"),
        ((0, 0, 0), ShapeError, "too many parts"),
        ((..., ...), ShapeError, "too many parts"),
        (5, ShapeError, "out of range for axis 0"),
        ("a", OptionError, "got 'a'"),
        (1.0, OptionError, "got 1.0"),
    ],
)
def test_malformed_indices_are_refused(index, error, match):
    with pytest.raises(error, match=match):
        V[index]


def test_turning_all_axes_round_and_none():
    assert (computed(g.reverse, x=X) == X[::-1, ::-1, ::-1]).all()
    assert g.reverse(V, ()) is V
    with pytest.raises(ShapeError, match="reverse: axis 2"):
        g.reverse(V, 2)
