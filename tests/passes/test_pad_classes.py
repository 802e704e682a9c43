"""Classes rounded up to a multiple of 8: the same losses and gradients, and aligned products."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import STEPS, make_plan
from graphc.errors import FeedError
from graphc.ir.op import is_16_bit
from graphc.models import MODELS
from graphc.ops.matmul import Matmul
from graphc.passes.pad_classes import LEAST_CLASSES, pad_classes

ROWS, WIDTH, CLASSES, SEED = 16, 12, 1030, 4
H200 = "h200"


def network(bias=True, dtype="float32", classes=CLASSES, **options):
    x, labels = g.input("x", (ROWS, 5), dtype), g.input("labels", (ROWS,), "int32")
    h = g.tanh(g.linear(x, WIDTH, name="first"))
    weight = g.parameter("weight", (classes, WIDTH), dtype, g.Initial("normal", 0.3))
    by_class = g.parameter("bias", (classes,), dtype, g.Initial("normal", 0.3)) if bias else None
    return g.linear_cross_entropy(h, weight, labels, bias=by_class, chunks=4, **options)


def batch(step=0, dtype="float32", highest=CLASSES - 1):
    rng = np.random.default_rng(step)
    labels = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    labels[0] = highest
    return {"x": rng.standard_normal((ROWS, 5)).astype(dtype), "labels": labels}


def padded(graph):
    chunks = [node for node in graph.nodes if node.op.name == "cross_entropy_with_slopes"]
    assert chunks
    return any(node.attributes.padding for node in chunks)


def trained(loss, steps=None, dtype="float32", precision="bf16"):
    """A program of the CPU after three steps, and its losses."""
    options = {"loss": loss, "optimizer": g.optim.SGD(0.5), "precision": precision}
    if dtype == "float64":
        del options["precision"]
    program = Program(make_plan(PlanOptions(**options, kernels="numpy"), steps), SEED)
    losses = [float(program.step(batch(step, dtype))["loss"]) for step in range(3)]
    return program, losses


WITH_PASS = tuple(
    replace(step, when=lambda options: True) if step.name == "pad-classes" else step
    for step in STEPS
)


@functools.cache
def exact(**options):
    """Return the parameters before and after three steps in float64, and the losses."""
    program, losses = trained(network(dtype="float64", **options), dtype="float64")
    return dict(Program(program.plan, SEED).parameters), dict(program.parameters), losses


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"ignore_index": 7}], ids=str)
def test_losses_and_updates_are_those_of_float64(options, precision):
    program, losses = trained(network(**options), WITH_PASS, precision=precision)
    begun, ended, expected = exact(**options)
    assert padded(program.graph)
    np.testing.assert_allclose(losses, expected, rtol=5e-3)
    for name, start in begun.items():
        moved, wanted = program.parameters[name] - start, ended[name] - start
        np.testing.assert_allclose(moved, wanted, atol=0.02 * np.abs(wanted).max(), err_msg=name)


def test_products_on_a_gpu_have_multiples_of_8():
    plan = g.plan(
        MODELS["gpt2"](layers=1, width=64, heads=2, vocab=1297, batch=16, seq_len=256),
        optimizer=g.optim.Adam(), device=H200, precision="bf16",
    )  # fmt: skip
    assert padded(plan.graph)
    products = [node for node in plan.graph.nodes if isinstance(node.op, Matmul)]
    extents = {n for node in products for v in node.inputs if is_16_bit(v) for n in v.shape[-2:]}
    assert 1304 in extents
    assert all(extent % 8 == 0 for extent in extents)


def test_labels_name_no_padding():
    program, _ = trained(network(), WITH_PASS)
    with pytest.raises(FeedError, match=rf"labels.*\[0, {CLASSES}\)"):
        program.step(batch(highest=CLASSES))


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({}, "fp32"),
        ({"classes": 1032}, "bf16"),
        ({"classes": LEAST_CLASSES - 1}, "bf16"),
        ({"label_smoothing": 0.1}, "bf16"),
    ],
)
def test_other_losses_stay_as_they_are(options, precision):
    plan = g.plan(network(**options), optimizer=g.optim.SGD(0.1), device=H200, precision=precision)
    assert not padded(plan.graph)
    assert pad_classes(plan.graph) is plan.graph
