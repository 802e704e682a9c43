"""All ops that take indices, with indices from all kinds of values."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import FeedError
from graphc.ir.builder import trace

IDS = np.array([2, 0, 1])
MASK = np.array([True, False, True])


def _ids():
    return g.input("ids", (3,), "int64")


def _full(number, dtype="int64", shape=(3,)):
    return g.full(shape, number, dtype)


def _counted():
    return g.cumsum(_full(1), 0, exclusive=True)


SOURCES = {
    # name: (the indices, their numbers)
    "input": (_ids, IDS),
    "constant": (lambda: g.constant(IDS), IDS),
    "one number of a constant": (lambda: g.broadcast_to(g.constant(0), (3,)), [0, 0, 0]),
    "zeros": (lambda: _full(0), [0, 0, 0]),
    "full": (lambda: _full(2), [2, 2, 2]),
    "full of 32 bits": (lambda: _full(1, "int32"), [1, 1, 1]),
    "full of 8 bits": (lambda: _full(1, "uint8"), [1, 1, 1]),
    "a broadcast full": (lambda: g.broadcast_to(_full(1, shape=()), (3,)), [1, 1, 1]),
    "a reshaped full": (lambda: g.reshape(_full(1, shape=(3, 1)), (3,)), [1, 1, 1]),
    "a slice of a full": (lambda: _full(1, shape=(5,))[1:4], [1, 1, 1]),
    "a cast full": (lambda: g.cast(_full(1, "int32"), "int64"), [1, 1, 1]),
    "a narrowed full": (lambda: g.cast(_full(257), "uint8"), [1, 1, 1]),
    "a full of floats": (lambda: g.cast(_full(1.5, "float32"), "int64"), [1, 1, 1]),
    "a full of bools": (lambda: g.cast(_full(True, "bool"), "int32"), [1, 1, 1]),
    "a detached full": (lambda: g.stop_gradient(_full(1)), [1, 1, 1]),
    "joined fulls": (lambda: g.concat([_full(1, shape=(2,)), _full(2, shape=(1,))], 0), [1, 1, 2]),
    "arange": (_counted, [0, 1, 2]),
    "a constant arange": (lambda: g.constant(np.arange(3)), [0, 1, 2]),
    "a reversed arange": (lambda: g.reverse(_counted()), [2, 1, 0]),
    "a cast input": (lambda: g.cast(_ids(), "int32"), IDS),
    "a cast comparison": (lambda: g.cast(_ids() > 0, "int64"), [1, 0, 1]),
    "arithmetic of an input": (lambda: 2 - _ids(), 2 - IDS),
    "arithmetic of a constant": (lambda: g.constant(IDS) * 2 - g.constant(IDS), IDS),
    "arithmetic of fulls": (lambda: _full(5) - _full(2) * _full(2), [1, 1, 1]),
    "zeros like an input": (lambda: _ids() * 0, [0, 0, 0]),
    "where of an input": (lambda: g.where(g.constant(MASK), _ids(), _full(0)), [2, 0, 1]),
    "where of fulls": (lambda: g.where(g.constant(MASK), _full(2), _full(1)), [2, 1, 2]),
    "where with a full outside": (
        lambda: g.where(g.constant(~MASK), _full(99), _full(2)) % 97, [2, 2, 2]
    ),
    "clip": (lambda: g.clip(_ids() + 9, 0, 2), [2, 2, 2]),
    "argmax": (lambda: g.argmax(g.one_hot(_ids(), 3), 1), IDS),
    "elements of a full": (lambda: g.gather(_full(1, shape=(3,)), _ids()), [1, 1, 1]),
    "numbers of top_k": (lambda: g.top_k(_ids(), 3, 0)[0], [2, 1, 0]),
    "places of top_k": (lambda: g.top_k(_ids(), 3, 0)[1], [0, 2, 1]),
}  # fmt: skip

X = np.random.default_rng(0).standard_normal((3, 4))
Y = np.random.default_rng(1).standard_normal((4, 3))
LOGITS = np.random.default_rng(2).standard_normal((3, 3))
UPDATES = np.random.default_rng(3).standard_normal((3, 4))
MAP = np.random.default_rng(4).standard_normal((3, 2, 2, 2))
FEEDS = {"x": X, "y": Y, "logits": LOGITS, "updates": UPDATES, "map": MAP}
FLOATS = {name: g.input(name, array.shape, "float64") for name, array in FEEDS.items()}
UFUNCS = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _combined(reduction, at, x, updates):
    y = x.copy()
    for place, update in zip(at, updates, strict=True):
        ufunc = UFUNCS[reduction]
        y[place] = update if ufunc is None else ufunc(y[place], update)
    return y


def _losses(i):
    shifted = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    return -shifted[np.arange(3), i]


def _mean_of(losses, weights):
    return (losses * weights).sum() / max(weights.sum(), 1e-300)


def _smooth(i):
    shifted = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    return (0.75 * _losses(i) - 0.25 * shifted.mean(1)).mean()


def _unpooled(i):
    y = np.zeros((1, 1, 4))
    for place, update in zip(i, X[:, 0], strict=True):
        y[0, 0, place] = update
    return y


ROIS = np.array([[0.5, 0.5, 1.5, 1.5]] * 3)
WEIGHTS = np.array([0.5, 1.0, 2.0])

OPS = {
    # name: (the op on indices, NumPy on their numbers)
    "gather": (lambda i: g.gather(FLOATS["x"], i), lambda i: X[i]),
    "embedding": (lambda i: g.gather(g.constant(X), i), lambda i: X[i]),
    "take": (lambda i: g.take(FLOATS["y"], i, 1), lambda i: Y[:, i]),
    "[i]": (lambda i: FLOATS["x"][i], lambda i: X[i]),
    "[:, i]": (lambda i: FLOATS["y"][:, i], lambda i: Y[:, i]),
    "[i, i]": (lambda i: FLOATS["x"][i, i], lambda i: X[i, i]),
    "gather_nd": (lambda i: g.gather_nd(FLOATS["x"], g.reshape(i, (3, 1))), lambda i: X[i]),
    "gather_elements": (
        lambda i: g.gather_elements(FLOATS["logits"], g.reshape(i, (3, 1)), 1),
        lambda i: np.take_along_axis(LOGITS, i[:, None], 1),
    ),
    **{
        f"scatter_nd {reduction}": (
            lambda i, r=reduction: g.scatter_nd(
                FLOATS["x"], g.reshape(i, (3, 1)), FLOATS["updates"], r
            ),
            lambda i, r=reduction: _combined(r, i, X, UPDATES),
        )
        for reduction in UFUNCS
    },
    **{
        f"scatter_elements {reduction}": (
            lambda i, r=reduction: g.scatter_elements(
                FLOATS["x"][:, 0], i, FLOATS["updates"][:, 0], 0, r
            ),
            lambda i, r=reduction: _combined(r, i, X[:, 0], UPDATES[:, 0]),
        )
        for reduction in UFUNCS
    },
    "one_hot": (lambda i: g.one_hot(i, 3, "float64"), lambda i: np.eye(3)[i]),
    "max_unpool": (
        lambda i: g.max_unpool(
            g.reshape(FLOATS["x"][:, 0], (1, 1, 3)), g.reshape(i, (1, 1, 3)), (4,)
        ),
        _unpooled,
    ),
    "roi_align": (
        lambda i: g.roi_align(FLOATS["map"], g.constant(ROIS), i, 1, 1),
        lambda i: MAP[i].mean((2, 3), keepdims=True),
    ),
    "roi_align max": (
        lambda i: g.roi_align(FLOATS["map"], g.constant(ROIS), i, 1, 1, mode="max"),
        lambda i: MAP[i].max((2, 3), keepdims=True) / 4,
    ),
    "cross entropy": (
        lambda i: g.softmax_cross_entropy(FLOATS["logits"], i),
        lambda i: _losses(i).mean(),
    ),
    "losses": (
        lambda i: g.softmax_cross_entropy(FLOATS["logits"], i, reduction="none"),
        _losses,
    ),
    "ignored labels": (
        lambda i: g.softmax_cross_entropy(FLOATS["logits"], i, ignore_index=1),
        lambda i: _mean_of(_losses(i), i != 1),
    ),
    "weighted classes": (
        lambda i: g.softmax_cross_entropy(
            FLOATS["logits"], i, weights=g.constant(WEIGHTS)
        ),
        lambda i: _mean_of(_losses(i), WEIGHTS[i]),
    ),
    "smooth labels": (
        lambda i: g.softmax_cross_entropy(FLOATS["logits"], i, label_smoothing=0.25),
        _smooth,
    ),
    "nll_loss": (
        lambda i: g.nll_loss(
            g.log_softmax(FLOATS["logits"]), i, weights=g.constant(WEIGHTS), ignore_index=0
        ),
        lambda i: _mean_of(_losses(i), WEIGHTS[i] * (i != 0)),
    ),
    "linear_cross_entropy": (
        lambda i: g.linear_cross_entropy(
            FLOATS["logits"], g.constant(np.eye(3)), i, chunks=3
        ),
        lambda i: _losses(i).mean(),
    ),
}  # fmt: skip


def _with_gradients(op, indices):
    """Return the value, and its gradients by all inputs of floats."""
    y = OPS[op][0](indices)
    inputs = [s for s in trace({"y": y}).inputs if s.dtype.kind == "f"]
    if not inputs or op == "roi_align max":  # which is linear only with its choice fixed
        return {op: y}
    found = g.gradient(g.sum(y * y) if y.shape else y, inputs)
    return {op: y} | {f"{op} by {s.name}": d for s, d in zip(inputs, found, strict=True)}


def _compiled(indices, gradients=True):
    """Return a program of all ops, and gradients, on some indices, and the names of its outputs."""
    made = {op: OPS[op][0](indices) for op in OPS}
    if gradients:
        made = {name: y for op in OPS for name, y in _with_gradients(op, indices).items()}
    outputs = {f"y{number}": y for number, y in enumerate(made.values())}
    return g.compile(outputs=outputs, poison=True, reorder=False), list(made)


def _step(program, names, feeds):
    inputs = {source.name for source in program.graph.inputs}
    found = program.step({name: x for name, x in feeds.items() if name in inputs})
    return dict(zip(names, found.values(), strict=True))


@pytest.fixture(scope="module")
def fed():
    return _compiled(_ids())


@pytest.mark.parametrize("source", SOURCES)
def test_every_op_takes_indices_from_every_source(source):
    build, numbers = SOURCES[source]
    found = _step(*_compiled(build(), gradients=False), FEEDS | {"ids": IDS})
    check_values(found, np.asarray(numbers))


QUICK = ("input", "full of 8 bits", "a reversed arange", "a cast input", "where of an input")


@pytest.mark.parametrize(
    "source", [pytest.param(s, marks=[pytest.mark.slow] * (s not in QUICK)) for s in SOURCES]
)
def test_gradients_are_those_with_fed_indices(source, fed):
    """Other tests check gradients with fed indices."""
    build, numbers = SOURCES[source]
    numbers = np.asarray(numbers)
    found = _step(*_compiled(build()), FEEDS | {"ids": IDS})
    wanted = _step(*fed, FEEDS | {"ids": numbers})
    check_values(found, numbers)
    for name, y in found.items():
        np.testing.assert_array_equal(y, wanted[name], err_msg=name)


def check_values(found, numbers):
    for op, (_, oracle) in OPS.items():
        np.testing.assert_allclose(found[op], oracle(numbers), 1e-12, 1e-12, err_msg=op)


@pytest.mark.parametrize("number", [3, -1])
@pytest.mark.parametrize("op", ["gather", "one_hot", "cross entropy", "roi_align", "losses"])
def test_a_full_out_of_range_is_refused(op, number):
    program = g.compile(outputs={"y": OPS[op][0](_full(number))})
    inputs = {s.name for s in program.graph.inputs}
    with pytest.raises(FeedError, match=rf"from {number} to {number}.*\[0, 3\)"):
        program.step({k: v for k, v in FEEDS.items() if k in inputs})


def test_a_negative_full_counts_from_the_end():
    y = g.compile(outputs={"y": FLOATS["x"][_full(-1)]}).step(x=X)["y"]
    np.testing.assert_array_equal(y, X[[-1] * 3])


def test_the_numbers_of_top_k_are_checked():
    """Only the places have a limit: the numbers may be any."""
    y = g.gather(FLOATS["x"], g.top_k(_ids(), 2, 0)[0])
    program = g.compile(outputs={"y": y})
    with pytest.raises(FeedError, match=r"from 5 to 9.*\[0, 3\)"):
        program.step(x=X, ids=np.array([9, 0, 5]))
