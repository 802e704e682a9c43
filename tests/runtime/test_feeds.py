"""What may be fed: numbers that an input can hold, rates that train, labels that name classes."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc import Program
from graphc.errors import FeedError, OptionError
from graphc.ir.graph import Input
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.index_ranges import IndexRanges, index_limits

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
LABELS = np.arange(8, dtype=np.int32) % 3
RAGGED = [[1.0, 2.0], [3.0]]


def training(optimizer=None):
    loss = g.softmax_cross_entropy(g.linear(g.input("x", (8, 4)), 3), g.input("t", (8,), "int32"))
    return g.compile(loss, optimizer=optimizer or g.optim.SGD(0.1))


def states(program):
    return {name: array.tobytes() for name, array in program.states.items()}


def refused(program, feeds, message):
    before = states(program)
    with pytest.raises(FeedError, match=message):
        program.step(feeds)
    with pytest.raises(FeedError, match=message):
        next(program.steps([feeds]))
    assert states(program) == before


@pytest.mark.parametrize("optimizer", [g.optim.SGD, g.optim.Momentum, g.optim.Adam, g.optim.AdamW])
@pytest.mark.parametrize(
    ("rate", "given"),
    [
        (float("nan"), "got nan"),
        (float("inf"), "got inf"),
        (-0.1, "got -0.1"),
        (-1, "got -1"),
        (1e300, "got 1e.300"),
        pytest.param(10**400, "got 1000", id="10**400"),
        pytest.param(-(10**5000), "got a number of more than 4300 digits", id="-10**5000"),
        (np.float32("nan"), "got nan"),
        (np.asarray(-1.0, np.float32), "got -1"),
        (np.asarray(np.inf, np.float32), "got inf"),
    ],
)
def test_a_learning_rate_that_trains_nothing_is_refused(optimizer, rate, given):
    program = training(optimizer(0.25))
    rule = rf"input 'learning_rate' is a learning rate.*between 0 and 1e\+06, {given}.*feed a.*0.25"
    refused(program, {"x": X, "t": LABELS, "learning_rate": rate}, rule)


@pytest.mark.parametrize("rate", [0, 0.0, 0.5, 1, np.float32(0.5), np.asarray(0.5, np.float32)])
def test_learning_rates_that_may_be_fed_are_what_the_step_takes(rate):
    fed, made = training(), training(g.optim.SGD(float(rate)))
    fed.step(x=X, t=LABELS, learning_rate=rate)
    made.step(x=X, t=LABELS)
    assert states(fed) == states(made)


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "float16", "float32"])
def test_a_default_is_what_a_step_takes_in_the_dtype_of_its_input(dtype):
    x = g.input("x", (), dtype, default=1)
    program = g.compile(outputs={"y": x, "twice": g.cast(x, "float64") * 2.0})
    found = program.step()
    assert (found["y"].dtype, found["y"], found["twice"]) == (np.dtype(dtype), 1, 2.0)
    assert program.step(x=0)["twice"] == 0.0


def test_a_default_out_of_range_is_refused_as_if_it_were_fed():
    rows = g.parameter("rows", (5, 2), initial=g.Initial("normal", 1.0))
    for default in (4, 5, -1):
        row = g.gather(rows, g.input("row", (), "int32", default=default))
        program = g.compile(outputs={"y": row})
        if default == 4:
            assert np.array_equal(program.step()["y"], program.parameters["rows"][4])
            continue
        with pytest.raises(FeedError, match=rf"'row' contains numbers from {default} .*\[0, 5\)"):
            program.step()
        assert np.array_equal(program.step(row=2)["y"], program.parameters["rows"][2])


def test_an_input_that_is_called_learning_rate_and_is_none_may_be_anything():
    program = g.compile(outputs={"y": g.input("learning_rate", (), default=1.0) * 2.0})
    assert program.step(learning_rate=-3.0)["y"] == -6.0
    assert np.isnan(program.step(learning_rate=float("nan"))["y"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            RAGGED,
            "list that cannot be converted to an array of float32 .*; feed rows of equal length",
        ),
        (["a", "b"], "got list that cannot be converted to an array of float32"),
        ((1.0, 2.0), r"got tuple; feed a NumPy array.*numpy.asarray\(..., 'float32'\)"),
        (None, "got NoneType; feed a NumPy array"),
        ("numbers", "got str; feed a NumPy array"),
        (object(), "got object; feed a NumPy array"),
        (1.5, "got float; feed a NumPy array"),
        (1j, "got complex; feed a NumPy array"),
        (np.ma.masked_array(X, X > 0), r"got a masked array; replace .*filled\(number\)"),
        (X.astype(object), r"dtype object; convert it to numbers in rows of equal length"),
        (X.astype(str), r"dtype <U\d+; convert it to numbers"),
        (X.astype(np.complex64), r"dtype complex64; take the real part.*real.astype\('float32'\)"),
        (X.T, r"got the shape \[4, 8\]"),
    ],
)
def test_feeds_of_another_type_are_refused(given, message):
    rule = r"input 'x' must be f32\[8,4\]"
    refused(training(), {"x": given, "t": LABELS}, f"{rule}.*{message}")


def echo(dtype, count):
    """A program that returns its input."""
    return g.compile(outputs={"y": g.input("x", (count,), dtype)})


LIMITS = [-(2**31), 0, 1, 2**31 - 1]


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("int32", np.array(LIMITS)),
        ("int32", np.array(LIMITS, np.float64)),
        ("int32", np.array([True, False])),
        ("int64", np.array([2**62, -(2.0**63)])),
        ("uint8", np.array([0, 255], np.int32)),
        ("bool", np.array([0, 1, 1])),
        ("float32", np.array([0.5, -0.0, np.inf, np.nan, 2.0**-149])),
        ("float32", np.array([2**24, -(2**40)])),
        ("float32", np.array([1.5, np.nan], ml_dtypes.bfloat16)),
        ("float32", np.array([0.1], ">f4")),
        ("float64", np.array([0.1, 3.0], np.float32)),
        ("bfloat16", np.array([1.5, 2.0**100])),
        ("float16", np.array([65504, 2**-24])),
    ],
)
def test_feeds_of_another_dtype_are_converted_exactly(dtype, given):
    program = echo(dtype, given.size)
    found = program.step(x=given)["y"]
    assert found.dtype == g.ir.types.as_dtype(dtype).numpy
    np.testing.assert_array_equal(found.astype("f8"), given.astype("f8"))
    (after,) = (step["y"] for step in program.steps([{"x": given}]))
    np.testing.assert_array_equal(after, found)


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        ("int32", [3, 2**40], r"int64: 1099511627776 at \[1\] would become 0, and 1 of 2 .*feed"),
        ("int32", [2.5, -0.5], r"float64: 2.5 at \[0\] would become 2, and 2 of 2 numbers"),
        ("int32", np.array([2.0**31], np.float32), r"2147483648.0 at \[0\]"),
        ("int32", [np.nan], r"nan at \[0\] would become"),
        ("int64", [2.0**63], r"9223372036854775808|9.22\d*e\+18 at \[0\]"),
        ("uint8", [-1], r"-1 at \[0\] would become 255"),
        ("bool", [2], r"2 at \[0\] would become True"),
        ("float32", [0.5, 0.1], r"0.1 at \[1\] would become 0.10000000149\d*, .*round them with"),
        ("float32", [1e300], r"1e\+300 at \[0\] would become inf"),
        ("float32", [2**24 + 1], r"16777217 at \[0\] would become 16777216.0"),
        ("float32", [2**63 - 1], r"9223372036854775807 at \[0\]"),
        ("bfloat16", np.array([0.1], np.float32), r"would become 0.10009"),
        ("float16", [65536], r"65536 at \[0\] would become inf"),
    ],
)
def test_feeds_that_would_lose_something_are_refused(dtype, given, message):
    given = np.asarray(given)
    with pytest.raises(FeedError, match=f"input 'x' must be .*, got the dtype .*{message}"):
        echo(dtype, given.size).step(x=given)


def test_a_scalar_of_another_dtype_names_what_is_lost():
    program = g.compile(outputs={"y": g.input("x", (), "int32")})
    assert program.step(x=np.asarray(3.0))["y"] == 3
    with pytest.raises(FeedError, match=r"2.5 at \[\] would become 2, and 1 of 1"):
        program.step(x=np.asarray(2.5))


def test_an_array_of_the_right_dtype_is_fed_as_it_is(monkeypatch):
    def no(*_):
        raise AssertionError

    monkeypatch.setattr("graphc.runtime.feeds.converted", no)
    training().step(x=X, t=LABELS)


class Tensor:
    """An array of another library, which may fail to become one of NumPy."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        if self.array is None:
            raise TypeError("can't convert")
        return self.array


def test_arrays_of_other_libraries_are_fed():
    fed, made = training(), training()
    fed.step(x=Tensor(X.astype(np.float64)), t=Tensor(LABELS.astype(np.int64)))
    made.step(x=X, t=LABELS)
    assert states(fed) == states(made)
    refused(training(), {"x": Tensor(None), "t": LABELS}, "Tensor that cannot .* can't convert")
    refused(training(), {"x": X, "t": Tensor(LABELS[:3])}, r"got the shape \[3\]")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_tensors_of_torch_are_fed(dtype):
    torch = pytest.importorskip("torch")
    x = torch.tensor([0.5, -3.0], dtype=getattr(torch, dtype), requires_grad=True)
    np.testing.assert_array_equal(echo("float32", 2).step(x=x)["y"], np.float32([0.5, -3.0]))
    np.testing.assert_array_equal(
        echo("int32", 2).step(x=torch.tensor([7, 2]))["y"], np.int32([7, 2])
    )
    with pytest.raises(FeedError, match=r"1099511627776 at \[0\] would become 0"):
        echo("int32", 1).step(x=torch.tensor([2**40]))


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        (
            "float32",
            1e300,
            r"1e.300 exceeds 3.4\d*e.38, the largest float32; feed a number that",
        ),
        pytest.param("float32", 10**400, "1000.* exceeds", id="10**400"),
        pytest.param(
            "float32", 10**5000, "a number of more than 4300 digits exceeds", id="10**5000"
        ),
        ("float16", 65520.0, "65520.0 exceeds 65504, the largest float16"),
        pytest.param("float64", -(10**400), "exceeds .* the largest float64", id="float64"),
        pytest.param("int32", 10**400, "is not exactly representable as int32", id="int32"),
        ("int32", 2**31, "2147483648 is not exactly representable as int32"),
        ("int32", 0.5, "0.5 is not exactly representable"),
        ("int32", float("nan"), "nan is not exactly representable"),
        ("bool", 2, "2 is not exactly representable as bool"),
        ("float32", 1j, "got complex; feed an int, a float or a NumPy array"),
        ("float32", "fast", "got str; feed an int, a float or a NumPy array"),
        ("float32", None, "got NoneType; feed an int"),
        ("float32", np.ma.masked, "masked array"),
        ("float32", [1.0], "got list; feed a NumPy array"),
    ],
)
def test_a_number_that_a_scalar_cannot_hold_is_refused(dtype, given, message):
    program = g.compile(outputs={"y": g.reshape(g.input("x", (), dtype), (1,))})
    with pytest.raises(FeedError, match=f"input 'x'.*{message}"):
        program.step(x=given)


@pytest.mark.parametrize("given", [float("inf"), float("-inf"), 3.4e38, 7, True, np.float32(2)])
def test_a_number_that_a_scalar_holds_is_taken(given):
    program = g.compile(outputs={"y": g.reshape(g.input("x", ()), (1,))})
    assert program.step(x=given)["y"] == np.float32(given)


def test_a_file_of_numbers_mapped_into_memory_may_be_fed(tmp_path):
    X.tofile(tmp_path / "x")
    mapped = np.memmap(tmp_path / "x", np.float32, "r", shape=X.shape)
    assert training().step(x=mapped, t=LABELS) == training().step(x=X, t=LABELS)


@pytest.mark.parametrize("batches", [None, 5, "ab", {"x": X}, [None], [X]])
def test_invalid_batches_are_refused(batches):
    with pytest.raises(FeedError, match=r"must map|mappings|'x' is missing"):
        next(training().steps(batches))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (RAGGED, "got no array: .*; assign an array"),
        (np.ma.masked_array(np.zeros((3, 4), np.float32)), r"got a masked array; assign .filled"),
        ("text", "got <U4"),
        (None, "got object"),
    ],
)
def test_assigning_something_else_than_an_array_is_refused(given, message):
    program = training()
    before = states(program)
    with pytest.raises(OptionError, match=rf"'weight' is float32\[3, 4\], {message}"):
        program.parameters["weight"] = given
    assert states(program) == before


def through_views(x):
    """(name, integers of 8 or 6 elements that are those of x behind views) for x of (2, 4)."""
    flat = g.reshape(x, (8,))
    yield "reshape", flat
    yield "transpose", g.reshape(g.transpose(x), (8,))
    yield "slice", g.reshape(x[:, 1:], (6,))
    yield "steps", g.reshape(x[:, ::2], (4,))
    yield "split", g.reshape(g.split(x, 2, 1)[1], (4,))
    yield "broadcast", g.reshape(g.broadcast_to(g.reshape(x[0], (1, 4)), (3, 4)), (12,))
    yield "chain", g.reshape(g.reshape(g.transpose(g.reshape(x, (4, 2))), (2, 4))[1:], (4,))
    yield "cast", g.cast(flat, "int64")


VIEWS = [name for name, _ in through_views(g.input("x", (2, 4), "int32"))]


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_labels_after_a_view_keep_their_range_check(name, device):
    """Every element of what is fed, one at a time: refused if and only if the loss reads it."""
    x = g.input("labels", (2, 4), "int32")
    labels = dict(through_views(x))[name]
    logits = g.input("logits", (labels.shape[0], 3))
    loss = g.softmax_cross_entropy(logits, labels)
    plan = g.plan(outputs={"loss": loss, "numbers": labels}, device=device)
    backend = GpuBackend(plan, EmulatedDevice()) if device == "cuda" else None
    program = Program(plan, backend=backend)
    given = np.zeros((labels.shape[0], 3), np.float32)
    identity = np.arange(8, dtype=np.int32).reshape(2, 4)
    for place in range(8):
        one = (identity == place).astype(np.int32)
        read = program.step(logits=given, labels=one)["numbers"].any()
        for bad in (-1, 3):
            feeds = {"logits": given, "labels": bad * one}
            if read:
                with pytest.raises(FeedError, match=rf"input 'labels'.* {bad}.*\[0, 3\)"):
                    program.step(feeds)
            else:
                unread = program.step(logits=given, labels=0 * one)
                assert program.step(feeds)["loss"] == unread["loss"]


def test_parts_of_an_input_have_limits_of_their_own():
    """Classes in the first column, rows of a table in the others: each as far as it reaches."""
    x = g.input("x", (4, 3), "int32")
    loss = g.softmax_cross_entropy(g.input("logits", (4, 2)), x[:, 0])
    rows = g.gather(g.input("table", (10, 2)), x[:, 1:])
    program = g.compile(outputs={"loss": loss, "rows": rows})
    others = {"logits": np.zeros((4, 2), np.float32), "table": np.zeros((10, 2), np.float32)}
    good = np.array([[1, 9, 9]] * 4, np.int32)
    program.step(others, x=good)
    for column, limit, reader in ((0, 2, "softmax_cross_entropy"), (1, 10, "gather")):
        bad = good.copy()
        bad[2, column] = limit
        with pytest.raises(FeedError, match=rf"{reader} uses.*\[0, {limit}\)"):
            program.step(others, x=bad)


def test_micro_batches_are_checked_all():
    program = g.compile(
        g.softmax_cross_entropy(g.linear(g.input("x", (2, 4)), 3), g.input("t", (2,), "int32")),
        optimizer=g.optim.SGD(0.1), accumulate=3,
    )  # fmt: skip
    x, t = np.zeros((3, 2, 4), np.float32), np.zeros((3, 2), np.int32)
    for place in itertools.product(range(3), range(2)):
        bad = t.copy()
        bad[place] = 3
        with pytest.raises(FeedError, match=r"'t'.*from 0 to 3"):
            program.step(x=x, t=bad)
    assert program._backend._kept == []


def test_rows_of_integers_are_numbers_of_any_size():
    """The indices have a limit, the table of integers has none."""
    table = np.array([7, -5, 2**30], np.int32)
    rows = g.gather(g.input("table", (3,), "int32"), g.input("i", (2,), "int32"))
    program = g.compile(outputs={"rows": rows})
    found = program.step(table=table, i=np.array([2, 1], np.int32))["rows"]
    np.testing.assert_array_equal(found, [2**30, -5])
    assert set(index_limits(program.graph).values()) == {3}


def test_a_gradient_without_its_forward_node_checks_its_indices():
    """The sum of rows needs no rows: what is left is the gradient, which adds up by number."""
    table = g.parameter("table", (3, 2))
    i = g.input("i", (2,), "int32")
    (d,) = g.gradient(g.sum(g.gather(table, g.cast(i * 1, "int64"))), [table])
    program = g.compile(outputs={"d": d})
    assert "gather" not in {node.op.name for node in program.graph.nodes}
    with pytest.raises(FeedError, match=r"gather_gradient.*\[0, 3\)"):
        program.step(i=np.array([0, -1], np.int32))


def test_recomputed_integers_are_checked_once():
    """A check among the updates would make the program keep a second copy of its states."""
    x, t = g.input("x", (4, 6)), g.input("t", (4,))
    with g.mirror(1):
        labels = g.cast(t * 2.0, "int32")
        h = g.embedding(labels, 7, 6, name="rows") + x
    loss = g.softmax_cross_entropy(g.linear(g.tanh(h), 5), g.cast(t * 1.0, "int32"))
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), recompute="mirror")
    copies = [n for n in program.graph.nodes if n.copy_of is not None]
    assert any(n.op.name in ("gather", "cast") for n in copies)
    ranges = IndexRanges(program.graph).computed
    assert sum(map(len, ranges.values())) == 2
    assert not any(isinstance(r.value, Input) for found in ranges.values() for r in found)
    assert program._backend._kept == []


def test_integers_are_checked_after_a_narrowing_cast():
    """257 is 1 in eight bits, which is a class; 5 is none, cut or not."""
    labels = g.cast(g.input("t", (2,), "int64"), "uint8")
    program = g.compile(outputs={"y": g.one_hot(labels, 3)})
    found = program.step(t=np.array([257, 2]))["y"]
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 0, 1]])
    with pytest.raises(FeedError, match=r"the computed value .*from 1 to 5.*\[0, 3\)"):
        program.step(t=np.array([257, 5]))
