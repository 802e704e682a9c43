"""Attention against its formula; no mask and no infinity is kept."""

import numpy as np
import pytest
from scipy.special import softmax

import graphc as g
from graphc.errors import ShapeError


def formula(q, k, v, causal):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
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
    """Scores, and nothing else of their size: the softmax and its gradient run over them."""
    n = 64
    q, k, v = (g.parameter(name, (n, 2), initial=g.Initial("normal", 1.0)) for name in "qkv")
    plan = g.plan(g.mean(g.attention(q, k, v, causal=True)), optimizer=g.optim.SGD())
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
        (lambda x: g.attention(x, x, g.input("v", (4,))), "v is"),
        (lambda x: g.multi_head_attention(x, 2), "3 · width"),
        (lambda x: g.causal_softmax(g.input("s", (3, 2))), "no more rows than columns"),
        (lambda x: g.input("e", (0, 4)), "extent"),
    ],
)
def test_shapes_that_do_not_fit(build, match):
    with pytest.raises(ShapeError, match=match):
        build(g.input("x", (3, 4)))
