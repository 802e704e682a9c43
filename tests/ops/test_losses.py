"""Losses against their formulas in float64."""

import numpy as np
import pytest
from scipy.special import log_expit, log_softmax

import graphc as g
from graphc.errors import DTypeError, FeedError, GradientError, OptionError, ShapeError

RNG = np.random.default_rng(4)
SHAPE = (2, 3, 5)
LOGITS = RNG.standard_normal(SHAPE)
LABELS = np.array([[0, 4, -7], [2, -7, 2]])
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.0, 1.5])


def wanted(targets, counts, reduction):
    """Losses from what -log p is multiplied with, and their gradient by the logits."""
    p = np.exp(log_softmax(LOGITS, -1))
    losses = -(targets * log_softmax(LOGITS, -1)).sum(-1)
    slopes = p * targets.sum(-1, keepdims=True) - targets
    if reduction == "none":
        return losses, slopes * OUTER[..., None]
    divisor = counts.sum() if reduction == "mean" else 1.0
    return losses.sum() / divisor, slopes / divisor


OUTER = np.arange(1.0, 7).reshape(2, 3)
"""What losses that are not reduced are multiplied with before they are summed."""


def found(reduction, labels, dtype="int32", **options):
    logits = g.input("logits", SHAPE, "float64")
    given = g.input("labels", labels.shape, dtype)
    feeds = {"logits": LOGITS, "labels": labels.astype(dtype)}
    if "weights" in options:
        feeds["weights"] = options["weights"]
        options["weights"] = g.input("weights", (5,), "float64")
    y = g.softmax_cross_entropy(logits, given, reduction=reduction, **options)
    outer = g.input("outer", (2, 3), "float64")
    feeds |= {"outer": OUTER} if reduction == "none" else {}
    loss = g.sum(y * outer) if reduction == "none" else y
    (slopes,) = g.gradient(loss, [logits])
    results = g.compile(outputs={"y": y, "slopes": slopes}, training=True, poison=True).step(feeds)
    return results["y"], results["slopes"]


def check(result, expected):
    for one, other in zip(result, expected, strict=True):
        assert one.shape == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("ignored", [None, -7, 2])
def test_cross_entropy(ignored, smoothing, weighted, reduction):
    labels = LABELS if ignored == -7 else np.where(LABELS < 0, 1, LABELS)
    weights = WEIGHTS if weighted else np.ones(5)
    counted = labels != ignored
    inside = np.where(counted, labels, 0)
    targets = ((1 - smoothing) * np.eye(5)[inside] + smoothing / 5) * weights
    options = {"weights": WEIGHTS} if weighted else {}
    result = found(reduction, labels, ignore_index=ignored, label_smoothing=smoothing, **options)
    expected = wanted(targets * counted[..., None], weights[inside] * counted, reduction)
    check(result, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_of_probabilities(smoothing, reduction):
    probabilities = RNG.dirichlet(np.ones(5), (2, 3))
    targets = ((1 - smoothing) * probabilities + smoothing / 5) * WEIGHTS
    result = found(reduction, probabilities, "float64", label_smoothing=smoothing, weights=WEIGHTS)
    check(result, wanted(targets, np.ones(6), reduction))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_where_no_label_counts_the_mean_and_its_gradient_are_zero(smoothing):
    labels = np.full((2, 3), 9)
    check(found("mean", labels, ignore_index=9, label_smoothing=smoothing), (0.0, np.zeros(SHAPE)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("ignored", "dtype"), [(None, "int32"), (-7, "int64"), (300, "uint8")])
def test_logarithms_of_probabilities(ignored, dtype, reduction):
    x = g.input("x", SHAPE, "float64")
    given = np.where(LABELS < 0, -7 if dtype == "int64" else 1, LABELS).astype(dtype)
    labels, weights = g.input("labels", (2, 3), dtype), g.input("weights", (5,), "float64")
    loss = g.nll_loss(x, labels, ignore_index=ignored, weights=weights, reduction=reduction)
    (slopes,) = g.gradient(loss if reduction != "none" else g.sum(loss), [x])
    feeds = {"x": LOGITS, "labels": given, "weights": WEIGHTS}
    found = g.compile(outputs={"loss": loss, "slopes": slopes}, training=True).step(feeds)
    counted = given.astype(int) != ignored
    counts = WEIGHTS[np.where(counted, given, 0)] * counted
    targets = np.eye(5)[np.where(counted, given, 0)] * counts[..., None]
    losses = -(targets * LOGITS).sum(-1)
    divisor = counts.sum() if reduction == "mean" else 1
    expected = losses if reduction == "none" else losses.sum() / divisor
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["slopes"], -targets / divisor, rtol=1e-12)


@pytest.mark.parametrize("loss", [g.softmax_cross_entropy, g.nll_loss])
@pytest.mark.parametrize(("axis", "options"), [(1, {}), (0, {"ignore_index": -7}), (-2, {})])
def test_classes_on_another_axis(loss, axis, options):
    """As with the logits moved by NumPy, and the gradient moved back."""
    labels = LABELS if options else np.where(LABELS < 0, 1, LABELS)
    results = []
    for place in (-1, axis):
        array = np.moveaxis(LOGITS, -1, place)
        x, given = g.input("x", array.shape, "float64"), g.input("labels", (2, 3), "int64")
        weights = g.input("weights", (5,), "float64")
        y = loss(x, given, weights=weights, axis=place, **options)
        slopes = g.gradient(y, [x])[0]
        program = g.compile(outputs={"y": y, "slopes": slopes}, training=True, poison=True)
        results.append(program.step(x=array, labels=labels, weights=WEIGHTS))
    last, moved = results
    np.testing.assert_allclose(moved["y"], last["y"], rtol=1e-14)
    back = np.moveaxis(moved["slopes"], axis, -1)
    np.testing.assert_allclose(back, last["slopes"], rtol=1e-13, atol=1e-15)


def test_probabilities_of_classes_on_another_axis():
    probabilities = RNG.dirichlet(np.ones(5), (2, 3))
    x, y = (g.input(name, (2, 5, 3), "float64") for name in "xy")
    loss = g.softmax_cross_entropy(x, y, reduction="none", axis=1)
    feeds = {"x": LOGITS.swapaxes(1, 2), "y": probabilities.swapaxes(1, 2)}
    found = g.compile(outputs={"loss": loss}).step(feeds)["loss"]
    expected = -(probabilities * log_softmax(LOGITS, -1)).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_plain_cross_entropy_is_one_op():
    logits, labels = g.input("logits", (6, 5)), g.input("labels", (6,), "int32")
    node = g.softmax_cross_entropy(logits, labels).producer
    assert node.op.name == "softmax_cross_entropy"
    assert node.inputs == (logits, labels)
    deep = g.softmax_cross_entropy(g.reshape(logits, (2, 3, 5)), g.reshape(labels, (2, 3)))
    assert deep.producer.op.name == "softmax_cross_entropy"


def test_losses_of_rows_keep_the_probabilities_alone():
    """The one tensor of the logits' size lies over them, and the gradient over it."""
    x, w = g.input("x", (64, 8)), g.parameter("w", (500, 8), initial=g.Initial("normal", 1.0))
    logits = g.matmul(x, w, transpose_b=True)
    labels = g.input("labels", (64,), "int32")
    loss = g.softmax_cross_entropy(logits, labels, ignore_index=-1, label_smoothing=0.1)
    plan = g.plan(loss, optimizer=g.optim.SGD())
    large = [b for b in plan.buffers if b.bytes >= 4 * 64 * 500]
    assert [b.kind for b in large if b.kind != "workspace"] == ["feature map"]


@pytest.mark.parametrize("loss", [g.softmax_cross_entropy, g.nll_loss])
def test_class_weights_that_are_trained_are_refused_and_stopped_ones_taken(loss):
    x, labels = g.parameter("x", (3, 5)), g.input("labels", (3,), "int32")
    weights = g.exp(g.parameter("w", (5,)))
    with pytest.raises(
        GradientError, match=r"with respect to its input .weights.*graphc\.stop_gradient"
    ):
        g.plan(loss(x, labels, weights=weights), optimizer=g.optim.SGD())
    stopped = loss(x, labels, weights=g.stop_gradient(weights))
    slopes = g.gradient(stopped, [x, weights])
    assert slopes[1].producer.op.name == "full"


@pytest.mark.parametrize("label", [-2, 5, 6])
def test_labels_out_of_range_are_refused_with_an_ignored_label(label):
    logits, labels = g.input("logits", (3, 5)), g.input("labels", (3,), "int32")
    loss = g.softmax_cross_entropy(logits, labels, ignore_index=-1)
    program = g.compile(loss)
    feeds = {"logits": np.zeros((3, 5), np.float32)}
    assert program.step(feeds | {"labels": np.array([-1, 4, -1], np.int32)})["loss"] > 0
    with pytest.raises(FeedError, match=r"must be in \[0, 5\) or be -1"):
        program.step(feeds | {"labels": np.array([-1, 4, label], np.int32)})


def test_computed_labels_are_refused_with_an_ignored_label():
    logits, labels = g.input("logits", (3, 5)), g.input("labels", (3,), "int32")
    program = g.compile(g.softmax_cross_entropy(logits, labels + labels, ignore_index=-2))
    feeds = {"logits": np.zeros((3, 5), np.float32)}
    assert program.step(feeds | {"labels": np.array([-1, 2, 0], np.int32)})["loss"] > 0
    with pytest.raises(FeedError, match=r"must be in \[0, 5\) or be -2"):
        program.step(feeds | {"labels": np.array([-1, 3, 0], np.int32)})


def test_labels_that_one_loss_ignores_and_another_reads():
    logits, labels = g.input("logits", (3, 5)), g.input("labels", (3,), "int32")
    both = g.softmax_cross_entropy(logits, labels, ignore_index=-1)
    both = both + g.softmax_cross_entropy(logits, labels)
    feeds = {"logits": np.zeros((3, 5), np.float32), "labels": np.array([-1, 4, 0], np.int32)}
    with pytest.raises(FeedError, match=r"must be in \[0, 5\);"):
        g.compile(both).step(feeds)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_computes_losses_in_float32(precision):
    logits = g.linear(g.input("x", (4, 3)), 5)
    labels, weights = g.input("labels", (4,), "int32"), g.input("weights", (5,))
    loss = g.softmax_cross_entropy(logits, labels, weights=weights, ignore_index=0)
    graph = g.plan(loss, optimizer=g.optim.SGD(), precision=precision).graph
    kinds = {n.op.name: {v.type.dtype.name for v in n.inputs} for n in graph.nodes}
    assert kinds["cross_entropy"] == {"float32", "int32"}


def huber(x, y):
    error = np.abs(x - y)
    return np.where(error <= 0.7, error**2 / 2, 0.7 * (error - 0.35))


def divergence(x, y):
    logs = np.log(np.where(y > 0, y, 1))
    return y * (logs - x)


ELEMENTWISE = [
    (g.mse, {}, lambda x, y: (x - y) ** 2),
    (g.l1, {}, lambda x, y: np.abs(x - y)),
    (g.huber, {"delta": 0.7}, huber),
    (g.smooth_l1, {"beta": 0.7}, lambda x, y: huber(x, y) / 0.7),
    (g.hinge, {"margin": 0.5}, lambda x, y: np.maximum(0, 0.5 - x * y)),
    (g.kl_divergence, {}, divergence),
    (g.kl_divergence, {"log_target": True}, lambda x, y: np.exp(y) * (y - x)),
    (
        g.binary_cross_entropy_with_logits, {},
        lambda x, y: -y * log_expit(x) - (1 - y) * log_expit(-x),
    ),
]  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize(("function", "options", "formula"), ELEMENTWISE)
def test_elementwise_losses(function, options, formula, reduction):
    x, y = (g.input(name, (4, 3), "float64") for name in "xy")
    if reduction == "batchmean" and function is not g.kl_divergence:
        with pytest.raises(OptionError, match="reduction"):
            function(x, y, reduction=reduction)
        return
    loss = function(x, y, reduction=reduction, **options)
    feeds = {"x": 2 * RNG.standard_normal((4, 3)), "y": RNG.uniform(0, 1, (4, 3))}
    feeds["y"][0, 0] = 0.0
    given = formula(**feeds)
    divisor = {"mean": given.size, "batchmean": 4}.get(reduction, 1)
    expected = given if reduction == "none" else given.sum() / divisor
    result = g.compile(outputs={"loss": loss}).step(feeds)["loss"]
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_a_divergence_from_a_target_with_zeros_has_finite_gradients():
    x, y = (g.input(name, (4,), "float64") for name in "xy")
    slopes = g.gradient(g.kl_divergence(x, y, reduction="sum"), [x, y])
    feeds = {"x": np.log([0.1, 0.2, 0.3, 0.4]), "y": np.array([0.0, 0.5, 0.5, 0.0])}
    by_x, by_y = g.compile(outputs=slopes, training=True).step(feeds).values()
    np.testing.assert_array_equal(by_x, -feeds["y"])
    inside = feeds["y"] > 0
    np.testing.assert_allclose(by_y[inside], (np.log(0.5) + 1 - feeds["x"])[inside], rtol=1e-12)
    assert np.isfinite(by_y).all()


def test_weights_of_binary_cross_entropy():
    x, y = (g.input(name, (4, 3), "float64") for name in "xy")
    w, p = g.input("w", (4, 1), "float64"), g.input("p", (3,), "float64")
    loss = g.binary_cross_entropy_with_logits(x, y, weights=w, pos_weight=p)
    feeds = {v.name: RNG.uniform(0.1, 0.9, v.shape) for v in (x, y, w, p)}
    x, y, w, p = feeds.values()
    expected = -w * (p * y * log_expit(x) + (1 - y) * log_expit(-x))
    result = g.compile(outputs={"loss": loss}).step(feeds)["loss"]
    np.testing.assert_allclose(result, expected.mean(), rtol=1e-12)


def test_binary_cross_entropy_does_not_overflow():
    x, y = g.input("x", (4,)), g.input("y", (4,))
    loss = g.binary_cross_entropy_with_logits(x, y, reduction="none")
    (slopes,) = g.gradient(g.sum(loss), [x])
    program = g.compile(outputs={"loss": loss, "slopes": slopes}, check_finite=True)
    given = np.array([[1e4, 1e4, -1e4, -1e4], [1, 0, 1, 0]], np.float32)
    result = program.step(x=given[0], y=given[1])
    np.testing.assert_array_equal(result["loss"], [0, 1e4, 1e4, 0])
    np.testing.assert_array_equal(result["slopes"], [0, 1, -1, 0])


ROWS = (g.input("logits", (3, 5)), g.input("labels", (3,), "int32"))


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: g.softmax_cross_entropy(*ROWS, reduction="max"), OptionError, "reduction"),
        (lambda: g.softmax_cross_entropy(*ROWS, label_smoothing=1.5), OptionError, "smoothing"),
        (lambda: g.softmax_cross_entropy(*ROWS, ignore_index=0.5), OptionError, "ignore_index"),
        (
            lambda: g.softmax_cross_entropy(ROWS[0], ROWS[0], ignore_index=0),
            OptionError, "ignore_index is not supported",
        ),
        (
            lambda: g.softmax_cross_entropy(*ROWS, weights=g.input("w", (4,))),
            ShapeError, "one number per class",
        ),
        (
            lambda: g.softmax_cross_entropy(*ROWS, weights=g.input("w", (5,), "float64")),
            DTypeError, "cast",
        ),
        (lambda: g.softmax_cross_entropy(ROWS[0], ROWS[1][:2]), ShapeError, "classes"),
        (lambda: g.nll_loss(ROWS[0], ROWS[1][:2]), ShapeError, "classes"),
        (lambda: g.nll_loss(ROWS[0], ROWS[0]), DTypeError, "integers"),
        (lambda: g.huber(ROWS[0], ROWS[0], delta=0), OptionError, "above 0"),
        (lambda: g.hinge(ROWS[0], ROWS[0], margin="a"), OptionError, "hinge: margin: .* 'a'"),
        (
            lambda: g.softmax_cross_entropy(*ROWS, axis=2),
            ShapeError, "softmax_cross_entropy: axis 2 is out of range",
        ),
        (lambda: g.nll_loss(*ROWS, axis=0), ShapeError, r"integers \[5\] .* set `axis`"),
        (
            lambda: g.nll_loss(*ROWS, axis=1, weights=g.input("w", (3,))),
            ShapeError, r"one number per class of f32\[3,5\], \(5,\), got",
        ),
        (lambda: g.smooth_l1(ROWS[0], ROWS[0], beta=-1), OptionError, "above 0"),
        (
            lambda: g.kl_divergence(*[g.input("s", ())] * 2, reduction="batchmean"),
            ShapeError, "first axis",
        ),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(build, error, match):
    with pytest.raises(error, match=match):
        build()


LOSSES = [
    g.mse, g.l1, g.huber, g.smooth_l1, g.hinge, g.kl_divergence,
    g.binary_cross_entropy_with_logits, g.softmax_cross_entropy, g.nll_loss,
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_errors_of_missing_operands_name_the_loss(loss):
    x, name = g.input("x", (2,)), loss.__name__
    with pytest.raises(OptionError, match=f" {name}: an operand must be a graphc value"):
        loss(None, x)
    with pytest.raises(OptionError, match=rf" {name}(: \w+)?: an operand must be a graphc value"):
        loss(x, None)


@pytest.mark.parametrize("loss", LOSSES)
def test_errors_of_non_float_operands_name_the_loss(loss):
    whole = g.input("whole", (2, 3), "int32")
    with pytest.raises(DTypeError, match=f" {loss.__name__}: .*floats"):
        loss(whole, whole if loss in LOSSES[:-2] else g.input("labels", (2,), "int32"))


@pytest.mark.parametrize("loss", LOSSES[:5])
def test_a_target_may_be_a_number(loss):
    x = g.input("x", (3,), "float64")
    number, filled = loss(x, 2.0), loss(x, g.full((3,), 2.0, "float64"))
    found = g.compile(outputs=[number, filled]).step(x=np.array([-1.0, 0.5, 4.0]))
    np.testing.assert_array_equal(*found.values())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_whose_class_weights_are_all_0_give_no_loss_and_no_gradient(smoothing):
    weights = g.constant(np.array([0.0, 1.0, 2.0]))
    x, labels = g.parameter("x", (2, 3), "float64"), g.input("labels", (2,), "int32")
    loss = g.softmax_cross_entropy(x, labels, weights=weights, label_smoothing=smoothing)
    program = g.compile(outputs={"loss": loss, "dx": g.gradient(loss, [x])[0]})
    results = program.step(labels=np.zeros(2, np.int32))
    assert results["loss"] == 0
    assert not results["dx"].any()
