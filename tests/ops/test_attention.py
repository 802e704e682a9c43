"""Attention against its formula; no causal mask and no infinity is kept."""

import functools

import numpy as np
import pytest
from scipy.special import softmax

import graphc as g
from graphc.errors import OptionError, ShapeError


def formula(q, k, v, causal, scale=None):
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    if causal:
        rows, columns = scores.shape[-2:]
        seen = np.arange(columns) <= np.arange(rows)[:, None] + columns - rows
        scores = np.where(seen, scores, -np.inf)
    return softmax(scores, -1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(7, 7), (1, 5), (3, 8), (40, 40)])
def test_attention(causal, rows, columns):
    q = g.input("q", (2, 3, rows, 4), "float64")
    k, v = (g.input(n, (2, 3, columns, w), "float64") for n, w in (("k", 4), ("v", 5)))
    program = g.compile(outputs={"y": g.attention(q, k, v, causal)}, check_finite=True)
    rng = np.random.default_rng(0)
    feeds = {x.name: rng.standard_normal(x.shape) for x in (q, k, v)}
    found = program.step(feeds)["y"]
    np.testing.assert_allclose(found, formula(**feeds, causal=causal), rtol=1e-12, atol=1e-14)


FUSED = [(2, 3, 7, 7), (1, 2, 1, 5), (1, 1, 3, 8), (1, 2, 300, 300), (1, 1, 130, 401)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "heads", "rows", "columns"), FUSED)
def test_fused_attention(batch, heads, rows, columns, causal):
    """Also over several blocks of rows, of which the last is shorter."""
    q = g.input("q", (batch, heads, rows, 4), "float64")
    k, v = (g.input(n, (batch, heads, columns, w), "float64") for n, w in (("k", 4), ("v", 5)))
    y = g.attention(q, k, v, causal, scale=0.7, form="fused")
    program = g.compile(outputs={"y": y}, check_finite=True, poison=True)
    rng = np.random.default_rng(0)
    feeds = {x.name: rng.standard_normal(x.shape) for x in (q, k, v)}
    found = program.step(feeds)["y"]
    wanted = formula(**feeds, causal=causal, scale=0.7)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (2, 2), (2, 1, 3)])
def test_both_forms_have_the_same_gradients(leading, causal):
    rng = np.random.default_rng(1)
    shapes = {"q": (140, 6), "k": (290, 6), "v": (290, 3), "weight": (140, 3)}
    feeds = {name: rng.standard_normal((*leading, *s)) for name, s in shapes.items()}
    results = []
    for form in ("composed", "fused"):
        q, k, v, weight = (g.input(name, (*leading, *s), "float64") for name, s in shapes.items())
        loss = g.sum(weight * g.attention(q, k, v, causal, form=form))
        named = dict(zip("qkv", g.gradient(loss, [q, k, v]), strict=True))
        program = g.compile(loss, outputs=named, poison=True)
        results.append(program.step(feeds))
    assert sum(node.op.name == "attention_gradient" for node in program.graph.nodes) == 1
    for name, array in results[0].items():
        np.testing.assert_allclose(results[1][name], array, rtol=1e-9, atol=1e-11)


def test_large_scores_do_not_overflow():
    q, k, v = (g.input(name, (1, 1, 4, 2), "float32") for name in "qkv")
    y = g.attention(q, k, v, True, scale=1.0, form="fused")
    large = np.array([[100, 0], [0, 100], [-100, 0], [50, 50]], np.float32)[None, None]
    program = g.compile(outputs={"y": y}, check_finite=True)
    found = program.step(q=large, k=large, v=large)["y"]
    wanted = formula(*[large.astype(np.float64)] * 3, True, 1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def fused_plan(positions):
    shape = (2, 3, positions, 8)
    q, k, v = (g.parameter(name, shape, initial=g.Initial("normal", 1.0)) for name in "qkv")
    loss = g.mean(g.attention(q * 1.5, k * 1.5, v * 1.5, causal=True, form="fused"))
    return g.plan(loss, optimizer=g.optim.SGD(), allocate="none")


def test_fused_memory_grows_with_the_positions():
    """A composed one has the scores: four times the bytes for twice the positions."""
    plans = [fused_plan(positions) for positions in (2048, 4096, 8192)]
    maps = [plan.feature_map_bytes for plan in plans]
    assert 1.999 * maps[0] < maps[1] <= 2 * maps[0]  # a loss does not grow
    assert 1.999 * maps[1] < maps[2] <= 2 * maps[1]
    workspaces = [plan.workspace_bytes for plan in plans]
    assert workspaces[2] < 2.01 * workspaces[1] < 4.03 * workspaces[0]
    largest = max(b.bytes for b in plans[2].buffers)
    assert largest < 4 * 8192**2 / 8


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"form": "flash"}, "composed"),
        ({"form": "fused", "drop": 1.0}, "at least 0 and below 1"),
        ({"scale": "large"}, "finite number"),
        ({"scale": float("inf")}, "finite number"),
    ],
)
def test_options_that_do_not_fit(options, match):
    x = g.input("x", (3, 4))
    with pytest.raises(OptionError, match=match):
        g.attention(x, x, x, **options)


@pytest.mark.parametrize("form", ["composed", "fused"])
def test_operands_that_do_not_fit(form):
    attention = functools.partial(g.attention, form=form)
    q, k = g.input("q", (2, 3, 4)), g.input("k", (2, 2, 4))
    with pytest.raises(ShapeError, match=r"attention: .*at least as many columns as rows"):
        attention(q, k, k, causal=True)
    with pytest.raises(ShapeError, match=r"attention: leading axes of q and k.*\[7, 5, 2\]"):
        attention(g.input("r", (7, 5, 2, 3, 4)), g.input("s", (6, 1, 1, 3, 4)), q)
    with pytest.raises(ShapeError, match=r"attention: .*heads of q a multiple"):
        attention(g.input("t", (3, 3, 4)), q, q)
    with pytest.raises(ShapeError, match=r"attention: .*value width"):
        attention(q, k, g.input("v", (2, 3, 4)))
    with pytest.raises(ShapeError, match=r"attention: .*value width"):
        attention(q, g.input("u", (2, 3, 5)), q)


BROADCAST = [
    ((3, 2), (), ()),
    ((), (3, 2), (2,)),
    ((2,), (3, 1), (3, 1)),
    ((3, 1), (3, 1), (3, 2)),
    ((4, 1, 2), (3, 1), (1, 3, 2)),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("of_q", "of_k", "of_v"), BROADCAST)
def test_leading_axes_broadcast(of_q, of_k, of_v, masked):
    """In both forms, with gradients of the shapes before broadcasting."""
    rng = np.random.default_rng(1)
    shapes = {"q": (*of_q, 4, 6), "k": (*of_k, 5, 6), "v": (*of_v, 5, 3)}
    feeds = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    seen = np.arange(5) <= np.arange(4)[:, None]
    results = []
    for form in ("composed", "fused"):
        q, k, v = (g.input(name, shape, "float64") for name, shape in shapes.items())
        y = g.attention(q, k, v, form=form, mask=g.constant(seen) if masked else None)
        named = dict(zip("qkv", g.gradient(g.sum(y * y), [q, k, v]), strict=True))
        results.append(g.compile(outputs={"y": y, **named}, poison=True).step(feeds))
    if not masked:
        np.testing.assert_allclose(results[1]["y"], formula(**feeds, causal=False), rtol=1e-10)
    for name, array in results[0].items():
        np.testing.assert_allclose(results[1][name], array, rtol=1e-9, atol=1e-11)


def test_later_tokens_do_not_change_earlier_ones():
    x = g.input("x", (1, 6, 12), "float64")
    program = g.compile(outputs={"y": g.multi_head_attention(x, 2, causal=True)})
    rng = np.random.default_rng(0)
    first = rng.standard_normal((1, 6, 12))
    second = first.copy()
    second[:, 4:] = rng.standard_normal((1, 2, 12))
    a, b = (program.step(x=fed)["y"] for fed in (first, second))
    np.testing.assert_array_equal(a[:, :4], b[:, :4])
    assert not np.array_equal(a[:, 4:], b[:, 4:])


def test_no_mask_is_stored():
    """Composed attention has scores, and nothing else of their size: the softmax and its gradient
    run over them."""
    n = 64
    q, k, v = (g.parameter(name, (n, 2), initial=g.Initial("normal", 1.0)) for name in "qkv")
    loss = g.mean(g.attention(q, k, v, causal=True, form="composed"))
    plan = g.plan(loss, optimizer=g.optim.SGD())
    sizes = [b.bytes for b in plan.buffers if b.kind != "workspace" and b.bytes >= 4 * n * n]
    assert len(sizes) == 2  # the weights, and the gradient that comes back to them


def test_an_embedding_is_rows_of_a_table():
    tokens = g.input("tokens", (2, 3), "int32")
    y = g.embedding(tokens, 5, 4, name="words")
    program = g.compile(outputs={"y": y})
    fed = np.array([[0, 4, 4], [2, 1, 0]], np.int32)
    table = program.parameters["words/weight"]
    np.testing.assert_array_equal(program.step(tokens=fed)["y"], table[fed])


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda x: g.attention(x, x, g.input("v", (4,))), "v must be"),
        (lambda x: g.multi_head_attention(x, 2), "3 · width"),
        (lambda x: g.causal_softmax(g.input("s", (3, 2))), "at least as many columns as rows"),
        (lambda x: g.input("e", (0, 4)), "extent"),
    ],
)
def test_shapes_that_do_not_fit(build, match):
    with pytest.raises(ShapeError, match=match):
        build(g.input("x", (3, 4)))
