"""Losses and their gradients against torch in float64. Run by `make nightly`."""

import itertools

import numpy as np
import pytest
from peers.comparison import RNG

import graphc as g

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

LOGITS, WEIGHTS = RNG.standard_normal((4, 6, 5)), RNG.uniform(0.2, 2, 5)
LABELS = RNG.integers(0, 5, (4, 6))
SKIPPED = np.where(LABELS == 1, -100, LABELS)
REDUCTIONS = ("mean", "sum", "none")


def check(loss, inputs, feeds, peer):
    """The loss of `inputs` and its gradients by the float ones, summed where it is not reduced."""
    total = loss if not loss.shape else g.sum(loss)
    wrt = [x for x in inputs if x.name in ("x", "y")]
    slopes = g.gradient(total, wrt)
    named = {"loss": loss, **{x.name: s for x, s in zip(wrt, slopes, strict=True)}}
    found = g.compile(outputs=named, training=True).step(feeds)
    tensors = {name: torch.tensor(array) for name, array in feeds.items()}
    for x in wrt:
        tensors[x.name].requires_grad_(True)
    expected = peer(tensors)
    expected.sum().backward()
    np.testing.assert_allclose(found["loss"], expected.detach(), rtol=1e-11)
    for x in wrt:
        np.testing.assert_allclose(found[x.name], tensors[x.name].grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("ignored", "smoothing", "weighted"),
    list(itertools.product((None, -100), (0.0, 0.2), (False, True))),
)
def test_cross_entropy(ignored, smoothing, weighted, reduction):
    x, labels = g.input("x", (4, 6, 5), "float64"), g.input("labels", (4, 6), "int64")
    weights = g.input("weights", (5,), "float64") if weighted else None
    loss = g.softmax_cross_entropy(
        x, labels, ignore_index=ignored, weights=weights, label_smoothing=smoothing,
        reduction=reduction,
    )  # fmt: skip
    feeds = {"x": LOGITS, "labels": LABELS if ignored is None else SKIPPED}
    feeds |= {"weights": WEIGHTS} if weighted else {}

    def peer(given):
        rows = given["x"].movedim(-1, 1)
        options = {"weight": given.get("weights"), "label_smoothing": smoothing}
        return F.cross_entropy(rows, given["labels"], reduction=reduction, **options)

    check(loss, (x,), feeds, peer)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_maps_where_torch_has_their_classes(reduction):
    maps, labels = RNG.standard_normal((2, 5, 3, 4)), RNG.integers(0, 5, (2, 3, 4))
    x, given = g.input("x", maps.shape, "float64"), g.input("labels", labels.shape, "int64")
    loss = g.softmax_cross_entropy(x, given, ignore_index=1, reduction=reduction, axis=1)
    options = {"ignore_index": 1, "reduction": reduction}
    check(
        loss, (x,), {"x": maps, "labels": labels},
        lambda p: F.cross_entropy(p["x"], p["labels"], **options),
    )  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_probabilities(reduction):
    x, y = (g.input(name, (4, 5), "float64") for name in "xy")
    weights = g.input("weights", (5,), "float64")
    loss = g.softmax_cross_entropy(x, y, weights=weights, label_smoothing=0.2, reduction=reduction)
    feeds = {"x": LOGITS[0, :4], "y": RNG.dirichlet(np.ones(5), 4), "weights": WEIGHTS}
    check(
        loss, (x,), feeds,
        lambda p: F.cross_entropy(
            p["x"], p["y"], p["weights"], label_smoothing=0.2, reduction=reduction
        ),
    )  # fmt: skip


def positive_weights(p, reduction):
    return F.binary_cross_entropy_with_logits(
        p["x"], p["y"], p["w"], pos_weight=p["p"], reduction=reduction
    )


ELEMENTWISE = {
    "mse": (g.mse, F.mse_loss, {}),
    "l1": (g.l1, F.l1_loss, {}),
    "huber": (g.huber, F.huber_loss, {"delta": 0.4}),
    "smooth l1": (g.smooth_l1, F.smooth_l1_loss, {"beta": 0.4}),
    "kl": (g.kl_divergence, F.kl_div, {}),
    "kl of logarithms": (g.kl_divergence, F.kl_div, {"log_target": True}),
    "bce": (g.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, {}),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, reduction):
    function, peer, options = ELEMENTWISE[name]
    if reduction == "batchmean" and function is not g.kl_divergence:
        pytest.skip("only of divergences")
    x, y = (g.input(each, (4, 5), "float64") for each in "xy")
    loss = function(x, y, reduction=reduction, **options)
    feeds = {"x": LOGITS[0, :4], "y": RNG.uniform(0.01, 0.99, (4, 5))}
    check(loss, (x, y), feeds, lambda p: peer(p["x"], p["y"], reduction=reduction, **options))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_binary_cross_entropy(reduction):
    x, y = (g.input(each, (4, 5), "float64") for each in "xy")
    w, p = g.input("w", (4, 1), "float64"), g.input("p", (5,), "float64")
    loss = g.binary_cross_entropy_with_logits(x, y, weights=w, pos_weight=p, reduction=reduction)
    feeds = {"x": LOGITS[0, :4], "y": RNG.uniform(0, 1, (4, 5))}
    feeds |= {"w": RNG.uniform(1, 2, (4, 1)), "p": WEIGHTS}
    check(loss, (x, y), feeds, lambda given: positive_weights(given, reduction))
