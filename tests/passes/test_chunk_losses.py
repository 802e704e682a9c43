"""Losses by parts: where they are, that they are what they were, and when they are chosen."""

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.compiler.compilation import traced
from graphc.compiler.options import PlanOptions
from graphc.errors import OptionError
from graphc.passes.chunk_losses import chunk_losses
from graphc.runtime.feeds import random_feeds

ROWS, WIDTH, CLASSES = 1024, 8, 600
"""Logits that take more than all else."""


def features(rows=ROWS):
    return g.tanh(g.linear(g.input("x", (rows, 5), "float64"), WIDTH, name="first"))


def labels(*shape):
    return g.input("labels", shape or (ROWS,), "int32")


def layer(x):
    return g.linear(x, CLASSES, name="last")


def plain():
    return g.softmax_cross_entropy(layer(features()), labels())


def tied():
    """Tokens (batch, positions) whose table is the weight of the last layer as well."""
    table = g.parameter("table", (CLASSES, WIDTH), "float64", g.Initial("normal", 0.5))
    tokens = g.take(table, g.input("tokens", (2, ROWS // 2), "int32"))
    return g.softmax_cross_entropy(g.affine(g.tanh(tokens), table), labels(2, ROWS // 2))


def ignoring(**options):
    return ignoring_in(features(), labels(), **options)


def ignoring_in(x, y, **options):
    options = {"ignore_index": 3, "label_smoothing": 0.1, **options}
    return g.softmax_cross_entropy(layer(x), y, **options)


def two_losses():
    """Two heads of one body, of which the second weighs half."""
    x, y = features(), labels()
    other = g.linear(x, 2 * CLASSES, name="other")
    return g.softmax_cross_entropy(other, y) + 0.5 * ignoring_in(x, y, reduction="sum")


CHUNKED = {
    "plain": (plain, 1),
    "tied": (tied, 1),
    "ignoring": (ignoring, 1),
    "a sum": (lambda: ignoring(reduction="sum"), 1),
    "smoothed": (
        lambda: g.softmax_cross_entropy(layer(features()), labels(), label_smoothing=0.1), 1
    ),
    "two losses": (two_losses, 2),
    "of part of the rows": (
        lambda: g.softmax_cross_entropy(layer(features()[:600]), labels(600)), 1
    ),
}  # fmt: skip


def in_segment():
    with g.segment("loss"):
        return plain()


def heads(classes, rows):
    """Logits whose rows are no rows of the layer."""
    y = g.reshape(g.linear(features(), classes, name="last"), (rows, -1))
    return g.softmax_cross_entropy(y, labels(rows))


WHOLE = {
    "two heads a row": lambda: heads(1200, 2 * ROWS),
    "a row of two": lambda: heads(300, ROWS // 2),
    "few rows": lambda: g.softmax_cross_entropy(layer(features(500)), labels(500)),
    "odd rows": lambda: g.softmax_cross_entropy(layer(features(1023)), labels(1023)),
    "rows apart": lambda: g.mean(ignoring(reduction="none") * 2.0),
    "weights": lambda: ignoring(weights=g.constant(np.ones(CLASSES))),
    "logits read twice": lambda: (
        g.softmax_cross_entropy(y := layer(features()), labels()) + g.mean(y)
    ),
    "logits kept": lambda: g.softmax_cross_entropy(g.keep(layer(features())), labels()),
    "no layer": lambda: g.softmax_cross_entropy(features(), labels()),
    "something between": lambda: g.softmax_cross_entropy(g.tanh(layer(features())), labels()),
    "a segment": in_segment,
}


def graph_of(loss, **options):
    return traced(PlanOptions(loss, optimizer=g.optim.SGD(), **options))


def trained(loss, **options):
    options = {"optimizer": g.optim.Adam(1e-2), **options}
    plan = g.plan(loss, **options)
    program = Program(plan, seed=2, poison=True)
    drawn = random_feeds(g.plan(loss, **{**options, "chunk_losses": None}).graph, 1)
    feeds = {s.name: array for s, array in drawn.items()}
    losses = [float(program.step(feeds)["loss"]) for _ in range(3)]
    return plan, losses, dict(program.states)


def losses_in(graph):
    return sum(node.op.name == "cross_entropy_with_slopes" for node in graph.nodes)


@pytest.mark.parametrize(
    ("case", "accumulate"),
    [
        *((case, 1 + (case in ("tied", "ignoring"))) for case in CHUNKED),
        *(
            pytest.param(case, 2 - (case in ("tied", "ignoring")), marks=pytest.mark.slow)
            for case in CHUNKED
        ),
    ],
)
def test_steps_are_those_of_whole_losses(case, accumulate):
    """Within the rounding of float64, of the loss, the gradients and what Adam makes of them."""
    network, number = CHUNKED[case]
    (whole, expected, states), (chunked, found, others) = (
        trained(network(), accumulate=accumulate, chunk_losses=each) for each in (False, True)
    )
    chunks = 2 if case == "of part of the rows" else 4
    assert losses_in(chunk_losses(graph_of(network()))) == number * chunks
    assert losses_in(chunked.graph) > losses_in(whole.graph)
    assert chunked.arena_bytes < 0.95 * whole.arena_bytes
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for name, wanted in states.items():
        np.testing.assert_allclose(others[name], wanted, rtol=1e-7, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("case", WHOLE)
def test_losses_that_cannot_be_chunked_stay_whole(case):
    graph = graph_of(WHOLE[case]())
    assert chunk_losses(graph) is graph


def test_logits_that_are_shown_stay_whole():
    logits = layer(features())
    graph = graph_of(g.softmax_cross_entropy(logits, labels()), outputs={"logits": logits})
    assert chunk_losses(graph) is graph


def test_a_gradient_of_the_users_own_stays_whole():
    """What chunks make has no second derivative."""
    weight = g.parameter("w", (CLASSES, WIDTH), "float64")
    x = features()
    (slope,) = g.gradient(g.softmax_cross_entropy(g.affine(x, weight), labels()), [x])
    penalty = g.mean(slope * slope)
    assert losses_in(g.plan(penalty, optimizer=g.optim.SGD(), chunk_losses=True).graph) == 0


@pytest.mark.parametrize(
    ("precision", "every"),
    [
        ("fp32", False),
        ("bf16", False),
        ("fp16", True),
        pytest.param("fp32", True, marks=pytest.mark.slow),
        pytest.param("bf16", True, marks=pytest.mark.slow),
    ],
)
def test_bits_are_the_same_under_every_strategy(precision, every):
    def bits(**options):
        x = g.tanh(g.linear(g.input("x", (ROWS, 5)), WIDTH, name="first"))
        loss = g.softmax_cross_entropy(g.linear(x, CLASSES, name="last"), labels())
        _, losses, states = trained(loss, chunk_losses=True, precision=precision, **options)
        return losses, {name: array.tobytes() for name, array in states.items()}

    plain = bits(allocate="none")
    strategies = [{}, {"allocate": "sharing"}, {"recompute": "sublinear"}, {"reorder": False}]
    for options in strategies if every else strategies[::2]:
        assert bits(**options) == plain, options


@pytest.mark.slow
def test_whether_there_are_chunks_depends_on_no_strategy():
    """Also where it is a close thing."""
    seen = set()
    for classes in (20, 50, 228):

        def loss(classes=classes):
            h = g.tanh(g.linear(features(), 64, name="wide"))
            return g.softmax_cross_entropy(g.linear(h, classes, name="last"), labels())

        options = {"optimizer": g.optim.Adam(), "chunk_losses": True}
        chunks = {
            losses_in(g.plan(loss(), **options, **given).graph)
            for given in (
                {}, {"allocate": "sharing"}, {"reorder": False}, {"alignment": 8192},
            )
        }  # fmt: skip
        assert len({number > 0 for number in chunks}) == 1, classes
        seen |= {number > 0 for number in chunks}
    assert seen == {False, True}


@pytest.mark.parametrize("recompute", ["cheap", "sublinear", "recursive"])
def test_no_chunk_is_computed_again(recompute):
    h = features()
    for number in range(12):
        h = g.tanh(g.linear(h, WIDTH, name=f"layer{number}"))
    loss = g.softmax_cross_entropy(layer(h), labels())
    plan = g.plan(loss, optimizer=g.optim.SGD(), recompute=recompute, chunk_losses=True)
    assert plan.recomputation.nodes > 0
    assert losses_in(plan.graph) == 4


def test_chunks_are_chosen_where_they_lower_the_peak():
    small = g.softmax_cross_entropy(g.linear(features(), 2, name="last"), labels())
    options = {"optimizer": g.optim.SGD(), "chunk_losses": True}
    assert chunk_losses(graph_of(small)) is not graph_of(small)
    assert losses_in(g.plan(small, **options).graph) == 0
    assert losses_in(g.plan(plain(), **options).graph) == 4


def test_a_gpu_chunks_by_itself_and_a_cpu_where_asked():
    for device, default in {"cpu": False, "h200": True}.items():
        for asked in (None, False, True):
            given = {"optimizer": g.optim.SGD(), "device": device, "chunk_losses": asked}
            plan = g.plan(plain(), **given)
            chunks = default if asked is None else asked
            assert (losses_in(plan.graph) > 0) is chunks
            told = {} if chunks is default else {"chunk_losses": chunks}
            assert {k: v for k, v in plan.settings.items() if k == "chunk_losses"} == told


def test_chunks_are_for_training():
    with pytest.raises(OptionError, match="give an optimizer"):
        g.plan(plain(), chunk_losses=True)
    with pytest.raises(OptionError, match="True or False"):
        g.plan(plain(), optimizer=g.optim.SGD(), chunk_losses=8)
    assert losses_in(g.plan(plain(), device="h200").graph) == 0


def test_the_mean_of_losses_in_float16_does_not_overflow():
    """The sum of 16,384 losses of about log(256) exceeds the largest float16, 65504."""
    x, t = g.input("x", (16384, 8), "float16"), g.input("t", (16384,), "int32")
    loss = g.softmax_cross_entropy(g.affine(x, g.parameter("w", (256, 8), "float16")), t)
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), chunk_losses=True)
    assert losses_in(program.graph) > 0
    found = program.step(x=np.ones((16384, 8), np.float16), t=np.zeros(16384, np.int32))["loss"]
    assert found == pytest.approx(np.log(256), rel=0.1)
