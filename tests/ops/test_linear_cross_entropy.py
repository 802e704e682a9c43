"""The loss of a linear layer by chunks of its rows, against the layer and the loss as two."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, GradientError, OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.models import gpt2
from graphc.ops.linear_cross_entropy import CrossEntropyWithSlopes, PaddedCrossEntropyAttributes
from graphc.plans.check.check_plan import check_plan

ROWS, INPUTS, CLASSES = 12, 5, 7
OPTIONS = {
    "plain": {},
    "no bias": {"bias": None},
    "ignored": {"ignore_index": 2},
    "sum": {"reduction": "sum"},
    "smooth": {"label_smoothing": 0.1},
    "one chunk": {"chunks": 1},
    "a row a chunk": {"chunks": ROWS},
}


def network(by_chunks, dtype="float64", **options):
    """A layer that is trained below the output, a weight that is read twice, and a factor."""
    x, t = g.input("x", (3, ROWS // 3, INPUTS), dtype), g.input("t", (3, ROWS // 3), "int32")
    h = g.tanh(g.linear(x, INPUTS, name="hidden"))
    weight = g.parameter("w", (CLASSES, INPUTS), dtype, g.Initial("normal", 0.5))
    options = {"bias": g.parameter("b", (CLASSES,), dtype, g.Initial("normal", 0.5))} | options
    h = h + g.mean(weight, 0)
    chunks = options.pop("chunks", 4)
    if by_chunks:
        loss = g.linear_cross_entropy(h, weight, t, chunks=chunks, **options)
    else:
        loss = g.softmax_cross_entropy(g.affine(h, weight, options.pop("bias")), t, **options)
    return loss * 3.0


def feeds(steps=1, dtype="float64"):
    rng = np.random.default_rng(0)
    shape = (3, ROWS // 3) if steps == 1 else (steps, 3, ROWS // 3)
    x = rng.standard_normal((*shape, INPUTS)).astype(dtype)
    return {"x": x, "t": rng.integers(0, CLASSES, shape, np.int32)}


def trained(loss, micro_batches=1, **options):
    options = {"optimizer": g.optim.SGD(0.1), "poison": True, "reorder": False} | options
    program = g.compile(loss, accumulate=micro_batches, **options)
    dtype = next(source.type.dtype.name for source in program.graph.inputs if source.name == "x")
    given = feeds(micro_batches, dtype)
    losses = [float(program.step(given)["loss"]) for _ in range(3)]
    return losses, {name: array.copy() for name, array in program.states.items()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_trains_as_the_two_do(options):
    losses, states = trained(network(True, **options))
    wanted, expected = trained(network(False, **options))
    np.testing.assert_allclose(losses, wanted, rtol=1e-13)
    for name, array in expected.items():
        np.testing.assert_allclose(states[name], array, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_16_bits_change_gradients_within_their_rounding(smoothing):
    """The logits x become x + d with |d| <= e = 2^-9 max |x|, for the 8 bits of bfloat16.

    Each exp(x) then changes by a factor from exp(-e) to exp(e), and so does their sum, so p changes
    by a factor from exp(-2e) to exp(2e), and by at most p (exp(2e) - 1). The result is rounded by
    at most 2^-9 of itself. A loss, log(sum) - x[label], changes by at most 2e. Float32 adds less
    than 1e-5 to either.
    """
    rng = np.random.default_rng(1)
    x = 4 * rng.standard_normal((9, 50), np.float32)
    labels = rng.integers(0, 50, 9, np.int32)
    found = {}
    for dtype in ("bfloat16", "float64"):
        logits, t = g.input("x", x.shape, dtype), g.input("t", labels.shape, "int32")
        node = apply(
            CrossEntropyWithSlopes, logits, t, attributes=PaddedCrossEntropyAttributes(smoothing)
        )
        outputs = {"losses": node.outputs[0], "slopes": g.cast(node.outputs[1], "float64")}
        assert node.outputs[0].type.dtype.name == ("float32" if dtype == "bfloat16" else dtype)
        given = {"x": x.astype(logits.type.dtype.numpy), "t": labels}
        found[dtype] = g.compile(outputs=outputs, poison=True).step(given)
    exact, narrow = found["float64"], found["bfloat16"]
    e = 2.0**-9 * np.abs(x).max()
    p = np.exp(x - np.logaddexp.reduce(x, 1, keepdims=True))
    bound = p * np.expm1(2 * e) + 2.0**-9 * np.abs(exact["slopes"]) + 1e-5
    assert (np.abs(narrow["slopes"] - exact["slopes"]) <= bound).all()
    assert (np.abs(narrow["losses"] - exact["losses"]) <= 2 * e + 1e-5).all()


def test_micro_batches_are_averaged():
    losses, states = trained(network(True), micro_batches=2)
    wanted, expected = trained(network(False), micro_batches=2)
    np.testing.assert_allclose(losses, wanted, rtol=1e-13)
    for name, array in expected.items():
        np.testing.assert_allclose(states[name], array, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), ("fp16", 2e-3)])
def test_narrow_precisions_come_close(precision, tolerance):
    """Gradients of a weight are summed in float32; shares of a chunk are not scaled by the rows."""
    losses, states = trained(network(True, "float32"), precision=precision)
    wanted, expected = trained(network(False, "float32"))
    np.testing.assert_allclose(losses, wanted, rtol=tolerance)
    for name, array in expected.items():
        if name in states:
            np.testing.assert_allclose(states[name], array, atol=3 * tolerance, err_msg=name)
    plan = g.plan(network(True, "float32"), optimizer=g.optim.SGD(0.1), precision=precision)
    shares = [v for v in plan.placements if v.shape == (CLASSES, INPUTS) and v.node is not None]
    products = [v for v in shares if v.node.op.name == "matmul"]
    assert {value.type.dtype.name for value in products} == {"float32"}


def test_all_plans_have_the_same_bits():
    options = (
        {"allocate": "none"}, {"allocate": "sharing"}, {"recompute": "sublinear"},
        {"recompute": "recursive"}, {"recompute": "cheap"}, {"reorder": True},
    )  # fmt: skip
    plain = trained(network(True))
    for each in options:
        losses, states = trained(network(True), **each)
        assert losses == plain[0], each
        assert all(states[name].tobytes() == plain[1][name].tobytes() for name in states), each


def test_nothing_is_larger_than_a_chunk():
    """The gradient of the weight is one buffer, to which each chunk adds its share."""
    rows, classes, chunks = 64, 5000, 8
    x, t = g.input("x", (rows, 16)), g.input("t", (rows,), "int32")
    weight = g.parameter("w", (classes, 16))
    plans = [
        g.plan(loss, optimizer=g.optim.SGD(0.1))
        for loss in (
            g.linear_cross_entropy(g.tanh(x), weight, t, chunks=chunks),
            g.softmax_cross_entropy(g.affine(g.tanh(x), weight), t),
        )
    ]
    for plan in plans:
        check_plan(plan)
    logits, weights = 4 * rows * classes, 4 * 16 * classes
    values = [v for v in plans[0].placements if v.type.bytes > logits // chunks]
    assert all(value.shape == weight.shape for value in values)
    least = 2 * weights + logits // chunks
    assert least <= plans[0].arena_bytes < least + logits // chunks
    assert plans[1].arena_bytes >= weights + logits
    names = [node.op.name for node in plans[0].graph.nodes]
    assert "gradient_sum" not in names
    assert names.count("matmul") == 3 * chunks - (chunks - names.count("concat") * chunks)


def test_without_training_no_gradient_is_computed():
    for options in ({}, {"training": True}):
        plan = g.plan(outputs=[network(True)], **options)
        names = {node.op.name for node in plan.graph.nodes}
        assert not names & {"cross_entropy_gradient", "with_gradient", "concat"}


def test_a_gradient_among_the_outputs():
    x, t = g.input("x", (4, 3), "float64"), g.input("t", (4,), "int32")
    weight = g.parameter("w", (5, 3), "float64")
    found = []
    for loss in (
        g.linear_cross_entropy(x, weight, t, chunks=2),
        g.softmax_cross_entropy(g.affine(x, weight), t),
    ):
        program = g.compile(outputs=dict(zip("ab", g.gradient(loss, [x, weight]), strict=True)))
        rng = np.random.default_rng(3)
        found.append(program.step(x=rng.standard_normal((4, 3)), t=rng.integers(0, 5, 4, np.int32)))
    for name in "ab":
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-12, atol=1e-15)


def test_it_has_no_second_derivative():
    x, t = g.input("x", (4, 3)), g.input("t", (4,), "int32")
    loss = g.linear_cross_entropy(x, g.parameter("w", (5, 3)), t, chunks=2)
    (dx,) = g.gradient(loss * loss, [x])
    with pytest.raises(GradientError, match=r"use softmax_cross_entropy\(affine"):
        g.gradient(g.sum(dx), [x])


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (OptionError, "a multiple of chunks, got 4 rows and 5 chunks", {"chunks": 5}),
        (OptionError, "chunks", {"chunks": 0}),
        (OptionError, "reduction", {"reduction": "none"}),
        (DTypeError, "labels must be integers", {"labels": g.input("t", (4,))}),
        (
            ShapeError,
            r"labels of .* must have the shape \[4\]",
            {"labels": g.input("t", (5,), "int32")},
        ),
        (ShapeError, "affine", {"weight": g.parameter("v", (5, 4))}),
    ],
)
def test_invalid_arguments_are_refused(error, message, change):
    given = {"weight": g.parameter("w", (5, 3)), "labels": g.input("t", (4,), "int32"), "chunks": 2}
    given |= change
    with pytest.raises(error, match=message):
        g.linear_cross_entropy(g.input("x", (4, 3)), **given)


def test_gpt2_by_chunks():
    sizes = {
        "layers": 1,
        "width": 16,
        "heads": 2,
        "seq_len": 8,
        "batch": 2,
        "vocab": 50,
        "drop": 0.0,
    }
    results = []
    for chunks in (1, 4):
        loss = gpt2(**sizes, dtype="float64", loss_chunks=chunks)
        program = g.compile(loss, optimizer=g.optim.Adam(1e-2))
        rng = np.random.default_rng(1)
        tokens = {name: rng.integers(0, 50, (2, 8), np.int32) for name in ("tokens", "labels")}
        results.append([float(program.step(tokens)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(*results, rtol=1e-10)
