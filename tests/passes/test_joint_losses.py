"""Losses of micro-batches and ranks together, against one step on the joint batch."""

import numpy as np
import pytest
from runtime.ranks.threads import on_ranks

import graphc as g
from graphc import Program
from graphc.runtime.ranks.lane import Lane

ROWS, CLASSES, IGNORED = 4, 5, -100
CLASS_WEIGHTS = np.array([0.5, 0.0, 2.0, 1.0, 3.0])


def labelled(function, **options):
    """A loss of logits and integer labels."""

    def build(rows, reduction):
        labels = g.input("labels", (rows,), "int32")
        return function(logits(rows), labels, reduction=reduction, **options)

    return build


def compared(function, **options):
    """A loss of predictions and float targets."""

    def build(rows, reduction):
        target = g.input("target", (rows, CLASSES), "float64")
        return function(logits(rows), target, reduction=reduction, **options)

    return build


def logits(rows):
    return g.linear(g.input("x", (rows, 3), "float64"), CLASSES, name="layer")


def weighted(logits, labels, **options):
    weights = g.constant(CLASS_WEIGHTS)
    return g.softmax_cross_entropy(logits, labels, weights=weights, **options)


def logarithms(logits, labels, **options):
    return g.nll_loss(g.log_softmax(logits), labels, **options)


def weighted_logarithms(logits, labels, **options):
    return logarithms(logits, labels, weights=g.constant(CLASS_WEIGHTS), **options)


def probabilities(logits, target, **options):
    return g.softmax_cross_entropy(logits, g.softmax(target), **options)


def divergence(logits, target, **options):
    return g.kl_divergence(g.log_softmax(logits), g.softmax(target), **options)


def in_chunks(rows, reduction):
    x, labels = g.input("x", (rows, 3), "float64"), g.input("labels", (rows,), "int32")
    weight = g.parameter("weight", (CLASSES, 3), "float64", g.Initial("uniform", 1.0))
    options = {"chunks": 2, "ignore_index": IGNORED}
    return g.linear_cross_entropy(x, weight, labels, reduction=reduction, **options)


def several(rows, reduction):
    """Two losses with counts of their own, a factor, and a penalty on a parameter."""
    y = logits(rows)
    first = g.softmax_cross_entropy(
        y, g.input("labels", (rows,), "int32"), ignore_index=IGNORED, reduction=reduction
    )
    second = weighted(
        g.tanh(y), g.input("others", (rows,), "int32"), ignore_index=IGNORED, reduction=reduction
    )
    penalty = g.sum(g.mul(y.node.inputs[1], y.node.inputs[1]))
    return 0.5 * first + 0.25 * second + 0.01 * penalty


LOSSES = {
    "cross entropy": labelled(g.softmax_cross_entropy),
    "ignored": labelled(g.softmax_cross_entropy, ignore_index=IGNORED),
    "smoothed": labelled(g.softmax_cross_entropy, ignore_index=IGNORED, label_smoothing=0.1),
    "weighted": labelled(weighted, ignore_index=IGNORED, label_smoothing=0.1),
    "weighted, none ignored": labelled(weighted),
    "nll": labelled(logarithms, ignore_index=IGNORED),
    "weighted nll": labelled(weighted_logarithms, ignore_index=IGNORED),
    "in chunks": in_chunks,
    "probabilities": compared(probabilities),
    "mse": compared(g.mse),
    "l1": compared(g.l1),
    "huber": compared(g.huber, delta=0.5),
    "smooth l1": compared(g.smooth_l1, beta=0.5),
    "binary": compared(g.binary_cross_entropy_with_logits),
    "divergence": compared(divergence),
    "hinge": compared(g.hinge),
    "several": several,
}
OPTIONS = {"optimizer": g.optim.SGD(0.1, momentum=0.9)}
STEPS = 2


def drawn(graph, batches, ignores):
    """The feeds of each batch. Few labels count in the first one and none in the second."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(batches):
        feeds = {}
        for source in graph.inputs:
            if source.type.dtype.kind == "int":
                feeds[source.name] = rng.integers(0, CLASSES, ROWS).astype(np.int32)
                if ignores and number < 2:
                    feeds[source.name][number == 0 :] = IGNORED
            else:
                feeds[source.name] = rng.normal(size=source.shape)
        found.append(feeds)
    return found


def joined(feeds, function=np.concatenate):
    return {name: function([each[name] for each in feeds]) for name in feeds[0]}


def assert_joint(name, reduction, accumulate, ranks, kernels="numpy"):
    """Compare ranks that accumulate with one step on all their rows."""
    build = LOSSES[name]
    batches = accumulate * ranks
    options = {**OPTIONS, "kernels": kernels}
    one = g.compile(build(ROWS * batches, reduction), **options)
    part = build(ROWS, reduction)
    ignores = "none" not in name and name != "cross entropy"
    feeds = drawn(g.plan(part).graph, batches, ignores)
    losses = [float(one.step(joined(feeds))["loss"]) for _ in range(STEPS)]
    plan = g.plan(part, accumulate=accumulate, ranks=ranks, **options)

    def work(wire):
        program = Program(plan, poison=True, lane=Lane(wire))
        own = feeds[wire.rank * accumulate : (wire.rank + 1) * accumulate]
        own = joined(own, np.stack) if accumulate > 1 else own[0]
        return [float(program.step(own)["loss"]) for _ in range(STEPS)], dict(program.states)

    for found, states in on_ranks(ranks, work):
        np.testing.assert_allclose(found, losses, rtol=1e-12)
        for state, array in one.states.items():
            np.testing.assert_allclose(states[state], array, rtol=1e-11, atol=1e-13)


PARTS = [(3, 1), (1, 2), (2, 2)]


def is_quick(number, name, reduction, parts):
    """Every mean by both, every sum by one of them in turn; the mean of several losses by each."""
    if reduction == "mean":
        return parts == (2, 2) or name == "several"
    return parts == PARTS[number % 2]


CASES = [
    pytest.param(name, reduction, *parts,
                 marks=[] if is_quick(number, name, reduction, parts) else pytest.mark.slow)
    for number, name in enumerate(LOSSES) for reduction in ("mean", "sum") for parts in PARTS
]  # fmt: skip


@pytest.mark.parametrize(("name", "reduction", "accumulate", "ranks"), CASES)
def test_micro_batches_and_ranks_train_as_their_joint_batch(name, reduction, accumulate, ranks):
    assert_joint(name, reduction, accumulate, ranks)


def test_a_batch_mean_stays_a_mean():
    LOSSES["batch mean"] = compared(divergence)
    try:
        assert_joint("batch mean", "batchmean", 2, 2)
    finally:
        del LOSSES["batch mean"]


def test_a_step_of_one_batch_has_no_mark():
    loss = LOSSES["several"](ROWS, "sum")
    for options in ({}, OPTIONS, OPTIONS | {"accumulate": 2}):
        ops = {node.op.name for node in g.plan(loss, **options).graph.nodes}
        assert not ops & {"batch_sum", "batch_count"}
