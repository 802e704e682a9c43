"""Small programs that once gave a wrong number, a traceback, or an allocation."""

import math
import os
import stat

import numpy as np
import pytest

import graphc as g
from graphc.errors import ArenaError, DTypeError, FeedError, GraphcError, OptionError, ShapeError
from graphc.ir.builder import trace
from graphc.ir.verify import verify

RNG = np.random.default_rng(0)


def run(*values, **feeds):
    return list(g.compile(outputs=values, poison=True).step(feeds).values())


def test_one_hot_of_a_strided_view():
    x = g.input("x", (2, 3), "int32")
    given = np.array([[0, 1, 2], [3, 2, 1]], np.int32)
    np.testing.assert_array_equal(run(g.one_hot(g.transpose(x), 4), x=given)[0], np.eye(4)[given.T])


@pytest.mark.parametrize(
    "build",
    [
        lambda i, u, b: i * 0.5,
        lambda i, u, b: i + 0.5,
        lambda i, u, b: g.maximum(i, 1.5),
        lambda i, u, b: g.equal(i, 0.5),
        lambda i, u, b: i > 1.5,
        lambda i, u, b: i + 2**40,
        lambda i, u, b: u + 300,
        lambda i, u, b: u - 1.0 * 256,
        lambda i, u, b: -b,
        lambda i, u, b: b - b,
        lambda i, u, b: g.sum(b),
        lambda i, u, b: g.full((2,), 1.5, "int32"),
    ],
)
def test_numbers_that_an_integer_cannot_hold(build):
    with pytest.raises(DTypeError, match="cast"):
        build(g.input("i", (3,), "int32"), g.input("u", (3,), "uint8"), g.input("b", (3,), "bool"))


def test_whole_numbers_beside_integers():
    i = g.input("i", (3,), "int32")
    found = run(i * 2, 1 - i, g.maximum(i, 2), i > 1, i=np.array([1, 2, 3], np.int32))
    assert [a.tolist() for a in found] == [[2, 4, 6], [0, -1, -2], [2, 2, 3], [False, True, True]]


def test_float64_updates_run_in_float64():
    w = g.parameter("w", (1,), "float64")
    x = g.input("x", (1,), "float64")
    program = g.compile(g.sum(w * x), optimizer=g.optim.SGD(1.0))
    program.step(x=np.array([0.123456789012345]))
    assert program.parameters["w"][0] == -0.123456789012345


def test_16_bit_parameters_have_float32_moments():
    w = g.parameter("w", (2,), "float16", g.Initial("constant", 0.1))
    x = g.input("x", (2,), "float16")
    program = g.compile(g.sum(w * x), optimizer=g.optim.Adam(0.01))
    for _ in range(3):
        program.step(x=np.full(2, 5e-3, np.float16))
    np.testing.assert_allclose(program.parameters["w"], 0.1 - 0.03, atol=2e-3)
    assert program.states["adam/v/w"].dtype == np.float32


def test_the_loss_keeps_its_name():
    x = g.input("x", (2,))
    with pytest.raises(OptionError, match="the output name 'loss' is reserved"):
        g.compile(g.sum(x), outputs={"loss": g.mean(x)})
    for name in ("my out", "", 3):
        with pytest.raises(OptionError, match="is not a valid name"):
            g.compile(outputs={name: x})


@pytest.mark.parametrize("kind", ["state", "view", "loss", "view as loss"])
def test_states_can_be_outputs_of_a_training_program(kind):
    """What comes out is the value before the update."""
    x = g.input("x", (2, 3))
    w = g.parameter("w", (2, 3), initial=g.Initial("constant", 2.0))
    scalar = g.parameter("s", (1,), initial=g.Initial("constant", 2.0))
    loss, outputs = g.sum(w * x), {}
    if kind == "state":
        outputs = {"w": w}
    elif kind == "view":
        outputs = {"w": g.transpose(w)[1:]}
    elif kind == "view as loss":
        loss = g.reshape(scalar, ())
    else:
        loss = g.parameter("l", (), initial=g.Initial("constant", 2.0))
    program = g.compile(loss, outputs=outputs, optimizer=g.optim.SGD(0.5), poison=True)
    feeds = {"x": np.ones((2, 3), np.float32)} if loss is not None and outputs else {}
    first, second = (program.step(feeds) for _ in range(2))
    name = "w" if outputs else "loss"
    assert (first[name] == 2.0).all()
    assert (second[name] == 1.5).all()


def test_gradient_of_a_slice_of_a_scalar():
    w = g.parameter("w", (), initial=g.Initial("constant", 3.0))
    program = g.compile((w * w)[...], optimizer=g.optim.SGD(0.5))
    assert program.step()["loss"] == 9.0
    assert program.parameters["w"] == 0.0


def test_keep_survives_the_passes():
    x = g.input("x", (2, 3))
    with g.mirror(1):
        h = g.keep(g.tanh(g.linear(x, 3)) * 1.0)
    plan = g.plan(g.mean(h * h), optimizer=g.optim.SGD(), recompute="mirror")
    (kept,) = plan.graph.kept
    assert kept.producer.op.name == "tanh"
    assert "keep" in g.format_graph(plan.graph)
    assert not any(n.op.name == "tanh" for n in plan.graph.nodes if n.phase == "mirror")


def test_zero_times_infinity_is_not_folded_away():
    x = g.input("x", (2,))
    found = run(x * 0.0, x + 0.0, x=np.array([np.inf, -0.0], np.float32))
    assert np.isnan(found[0][0])
    assert math.copysign(1, found[1][1]) == 1.0


def test_infinities_and_numpy_integers_round_trip():
    x = g.input("x", (2, 3))
    masked = g.where(x > 0, x, float("-inf"))
    turned = g.transpose(g.softmax(masked, np.int64(1)), np.array([1, 0]))
    graph = trace({"y": g.split(turned, np.int64(3))[0]})
    assert g.format_graph(g.parse_graph(g.format_graph(graph))) == g.format_graph(graph)
    assert "-inf" in g.format_graph(graph)


def test_long_sums_over_the_first_axis_are_accurate():
    """A million terms in float32, relative to float64."""
    x = RNG.uniform(0, 1, (1_000_000, 4)).astype(np.float32)
    found = run(g.sum(g.input("x", x.shape), 0), x=x)[0]
    np.testing.assert_allclose(found, x.sum(0, dtype=np.float64), rtol=5e-7)


def test_steps_with_look_ups_allocate_nothing():
    import tracemalloc

    table = g.parameter("table", (300, 512), initial=g.Initial("normal", 1.0))
    i = g.input("i", (64, 64), "int32")
    y = g.gather(table, i) + 0.0
    z = g.gather(g.transpose(table)[:, :32], g.cast(i > 3, "int64"))
    program = g.compile(g.mean(y) + g.mean(z), optimizer=g.optim.SGD())
    feeds = {"i": RNG.integers(0, 300, (64, 64)).astype(np.int32)}
    program.step(feeds)
    tracemalloc.start()
    program.step(feeds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**10


def test_saved_files_follow_the_umask(tmp_path):
    path = tmp_path / "run.safetensors"
    old = os.umask(0o022)
    try:
        g.compile(g.sum(g.parameter("w", (2,))), optimizer=g.optim.SGD()).save(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: g.compile(g.sum(x), optimizer="adm"),
        lambda x: g.compile(g.sum(x), optimizer=g.optim.Adam),
        lambda x: g.sum(X),
        lambda x: g.softmax(X),
        lambda x: g.transpose(X),
        lambda x: g.cast(X, "float64"),
        lambda x: g.reshape(X, (6,)),
        lambda x: g.reshape(x, "ab"),
        lambda x: g.full("ab", 1.0),
        lambda x: g.sum(x, 0.5),
        lambda x: g.softmax(x, 0.5),
        lambda x: g.transpose(x, "ab"),
        lambda x: x[np.array([0.5])],
        lambda x: x[5],
        lambda x: g.concat(x),
        lambda x: g.concat([x, g.input("y", (3,))], 1),
        lambda x: g.compile(outputs=x),
        lambda x: g.compile(g.sum(x), alignment="a"),
        lambda x: g.compile(g.sum(x), alignment=1),
        lambda x: g.keep(3),
        lambda x: g.gradient(g.sum(x), x),
        lambda x: g.gradient(g.sum(x), None),
        lambda x: X @ x,
        lambda x: g.Initial("zeros", 0.5),
        lambda x: g.Initial("normal", "a"),
        lambda x: g.parameter("w", (2,), initial=0.5),
        lambda x: g.input("i", (2,), default=1.0),
        lambda x: g.input("i", (), default="a"),
        lambda x: g.input("i", (), "int32", default=0.5),
        lambda x: g.compile(g.sum(x)).step([1, 2]),
        lambda x: g.compile(g.sum(x)).load(None),
        lambda x: g.compile(outputs=[g.input("n", (), "int32") * 1]).step(n=2.7),
        lambda x: g.compile(outputs=[g.input("n", (), "int32") * 1]).step(n=2**40),
    ],
)
def test_mistakes_are_reported(mistake):
    with pytest.raises(GraphcError):
        mistake(g.input("x", (2, 3)))


def test_an_arena_that_does_not_fit_this_machine():
    y = g.relu(g.matmul(g.input("x", (2**22, 2**14)), g.parameter("w", (2**14, 2**22))))
    with pytest.raises(ArenaError, match="which allocates nothing"):
        g.compile(outputs=[y])


def test_outputs_beyond_memory_are_refused_before_a_step():
    y = g.broadcast_to(g.input("x", (3, 4), "float64"), (10**12, 3, 4))
    assert g.plan(outputs=[y]).arena_bytes < 2**10
    with pytest.raises(ArenaError, match=r"outputs of a step need 96000000000000 bytes \(87"):
        g.compile(outputs=[y])


def test_numpy_integers_are_integers():
    x = g.input("x", (2, np.int64(3)))
    assert g.linear(x, np.int64(4)).shape == (2, 4)
    assert g.sum(x, np.int64(0)).shape == (3,)
    assert g.compile(g.sum(x), seed=np.int64(3)).step(x=X)["loss"] == 6


BAD_TEXT = [
    "%0: f32[2,3] = split(%x) {sizes=(3,), axis=5}",
    "%0: f32[2,3] = concat(%x) {axis=9}",
    "%0: f32[2,3] = sum(%x) {axes=1, keepdims=False}",
    "%0: f32[2,3] = sum(%x) {axes=(7,), keepdims=False}",
    "%0: f32[2,3] = slice(%x) {starts=(0, 0), stops=(2, 3), steps=(0, 1)}",
    "%0: f32[2,3] = softmax(%x) {axis=5}",
    "%0: f32[2] = full() {shape=(2,), dtype='float32', value='a'}",
    "%0: f32[2,3] = sgd_update(%x, %x, %x) {weight_decay=0.0}",
    "%0: f32[2,3] junk = relu(%x)",
    "%0: f32[2,3] = relu(%x) {2}",
]


@pytest.mark.parametrize("line", BAD_TEXT)
def test_invalid_graph_text_is_refused(line):
    text = f"graph {{\n  %x: f32[2,3] = input()\n  {line}\n  output y = %0\n}}\n"
    with pytest.raises(GraphcError):
        verify(g.parse_graph(text))


def test_a_model_file_that_fails(tmp_path, capsys):
    from graphc.cli import main

    (tmp_path / "part.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import graphc as g\n"
        "from part import WIDTH\n"
        "@dataclass\n"
        "class Sizes:\n    width: int = WIDTH\n"
        "def good(**sizes): return g.mean(g.linear(g.input('x', (2, 3)), Sizes().width))\n"
        "def needs(width): return good()\n"
        "def fails(): return 1 / 0\n"
    )
    (tmp_path / "wrong.py").write_text("def f(:\n")
    assert main(["plan", f"{tmp_path}/net.py:good", "a=1", "--json"]) == 0
    for model, message in (
        ("net.py:needs", "needs width=..."),
        ("net.py:fails", f"net.py:10: {tmp_path}/net.py:fails failed: ZeroDivisionError"),
        ("wrong.py:f", f"wrong.py:1: {tmp_path}/wrong.py failed: SyntaxError"),
    ):
        assert main(["plan", f"{tmp_path}/{model}"]) == 2
        assert message in capsys.readouterr().err


def test_a_run_is_not_lost_to_a_folder_that_is_not_there(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    from graphc.cli import main

    assert main(["train", "digits", "--save", "/no/such/folder/x.safetensors"]) == 2
    captured = capsys.readouterr()
    assert "cannot save" in captured.err
    assert "epoch" not in captured.out


def test_a_wrong_axis_and_shape_still_name_the_rule():
    x = g.input("x", (2, 3))
    with pytest.raises(ShapeError, match="out of range for axis 0 of extent 2"):
        x[5]
    with pytest.raises(FeedError, match="mapping"):
        g.compile(g.sum(x)).step(3)
