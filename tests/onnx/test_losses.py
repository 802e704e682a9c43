"""ONNX's losses: one that is read plans as one that is built, and falls back on its function."""

import numpy as np
import pytest
from onnx import helper
from onnx_cases.models import FLOAT, INT64, array, model
from scipy.special import log_softmax

import graphc

SCORES, CLASSES = (4, 5, 2, 3), 5
LABELS = np.random.default_rng(0).integers(0, CLASSES, (4, 2, 3))
WEIGHTS = np.array([0.5, 2, 1, 0.25, 1.5], np.float32)


def read(operator, results=("loss",), weights=None, scale=None, **attributes):
    """The network of a loss of maps that come out of a convolution; `scale` is of class weights."""
    given = {"w": array((CLASSES, 3, 1, 1)), "classes": weights, "scale": scale}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    nodes, operands = [helper.make_node("Conv", ["x", "w"], ["scores"])], ["scores", "labels"]
    if scale is not None:
        nodes.append(helper.make_node("Mul", ["classes", "scale"], ["scaled"]))
    if weights is not None:
        operands.append("classes" if scale is None else "scaled")
    nodes.append(helper.make_node(operator, operands, list(results), **attributes))
    inputs = {"x": (FLOAT, (4, 3, 2, 3)), "labels": (INT64, LABELS.shape)}
    shape = LABELS.shape if attributes.get("reduction") == "none" else ()
    outputs = dict(zip(results, ((FLOAT, shape), (FLOAT, SCORES)), strict=False))
    return graphc.onnx.load(model(nodes, inputs, outputs, tensors))


def built(function, weights=None, **options):
    """The same, in graphc's own words."""
    x = graphc.input("x", (4, 3, 2, 3))
    labels = graphc.input("labels", LABELS.shape, "int64")
    w = graphc.parameter("w", (CLASSES, 3, 1, 1), initial=graphc.Initial("uniform", 1.0))
    if weights is not None:
        options["weights"] = graphc.constant(weights)
    return function(graphc.conv2d(x, weight=w, bias=False), labels, axis=1, **options)


def shown(loss):
    """Ops and types of a training step, and its bytes."""
    loss = loss if not loss.shape else graphc.sum(loss)
    plan = graphc.plan(loss, optimizer=graphc.optim.SGD())
    nodes = [(n.op.name, n.attributes, [v.type for v in n.outputs]) for n in plan.graph.nodes]
    return nodes, plan.arena_bytes


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [None, -100])
@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("SoftmaxCrossEntropyLoss", graphc.softmax_cross_entropy),
        ("NegativeLogLikelihoodLoss", graphc.nll_loss),
    ],
)
def test_a_loss_plans_as_one_that_is_built(operator, function, ignored, weights):
    given = {} if ignored is None else {"ignore_index": ignored}
    for reduction in ("mean", "none"):
        network = read(operator, weights=weights, reduction=reduction, **given)
        loss = built(function, weights, reduction=reduction, **given)
        assert shown(network.outputs["loss"]) == shown(loss)


X = array((4, 3, 2, 3), 3)


def losses(labels):
    """Each label's -log softmax by NumPy, in float64."""
    w = array((CLASSES, 3, 1, 1)).astype(np.float64)[:, :, 0, 0]
    scores = np.einsum("nihw,oi->nhwo", X.astype(np.float64), w)
    return -np.take_along_axis(log_softmax(scores, -1), labels[..., None], -1)[..., 0]


def step(network, labels, **options):
    """A program that has done a step, and its loss."""
    program = graphc.compile(network.outputs["loss"], **options)
    network.initialize(program)
    return program, program.step(x=X, labels=labels)["loss"].item()


def test_logarithms_of_probabilities_that_are_read_come_from_the_function():
    network = read("SoftmaxCrossEntropyLoss", ("loss", "log_p"), WEIGHTS)
    assert network.outputs["log_p"].shape == SCORES
    counts = WEIGHTS[LABELS]
    wanted = (losses(LABELS) * counts).sum() / counts.sum()
    np.testing.assert_allclose(step(network, LABELS)[1], wanted, rtol=1e-6)


def test_class_weights_that_are_trained_get_a_gradient():
    network = read("SoftmaxCrossEntropyLoss", weights=WEIGHTS, scale=np.ones(5, np.float32))
    program, loss = step(network, LABELS, optimizer=graphc.optim.SGD(1.0))
    excess = losses(LABELS) - loss
    slopes = [WEIGHTS[c] * excess[c == LABELS].sum() for c in range(CLASSES)]
    moved = 1 - program.states["scale"]
    np.testing.assert_allclose(moved, slopes / WEIGHTS[LABELS].sum(), rtol=1e-4, atol=1e-6)


def test_an_ignored_label_beyond_32_bits_is_served_by_the_function():
    labels = np.where(LABELS == 1, -(2**40), LABELS)
    network = read("SoftmaxCrossEntropyLoss", ignore_index=-(2**40))
    wanted = losses(LABELS)[LABELS != 1].mean()
    np.testing.assert_allclose(step(network, labels)[1], wanted, rtol=1e-6)
