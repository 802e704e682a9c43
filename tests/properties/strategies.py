"""Random training graphs for hypothesis: fan-out, equal subexpressions, views, state, effects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import graphc as g
from graphc.ir import builder

ROWS, COLUMNS = 4, 6


def examples(count):
    """So many examples at night, by day as many in a hundred as the profile says, and at least 20.

    Graphs take long to draw, which is no fault of theirs.
    """
    drawn = max(20, count * settings().max_examples // 100)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=drawn, suppress_health_check=slow)


@dataclass(frozen=True)
class Network:
    """A loss over a random graph, other outputs, and feeds for two steps."""

    loss: g.Value
    outputs: dict[str, g.Value]
    feeds: list[dict[str, np.ndarray]]


def halves(a, b):
    left, right = g.split(a, 2, axis=1)
    return g.concat([right, g.mul(left, g.split(b, 2, axis=1)[0])], axis=1)


def through_views(a, b):
    turned = g.reshape(g.transpose(a), (COLUMNS, ROWS))
    return g.add(g.transpose(turned), b)


def top_rows(a, b):
    return g.concat([a[:2], b[2:]], axis=0)


def cut_after_turning(a, b):
    turned = g.transpose(a)[1:5, 1:]
    left, right = g.split(g.transpose(b), [2, 4], axis=0)
    return g.concat([g.transpose(turned), g.transpose(g.concat([right, left], 0))[:1, 2:]], 0)[
        :, :4
    ]


def spread_cut(a, b):
    return g.concat([cut_after_turning(a, b), g.transpose(g.transpose(b)[:2, :])], axis=1)


def counted(a, b):
    """Integers and comparisons on the way, and codes of a turned table."""
    level = g.cast(g.less(a, b), "int32") * 2 + 1
    codes = g.one_hot(g.transpose(level), 4)
    return g.add(g.transpose(g.sum(codes * 0.5, 2)), a)


def through_double(a, b):
    return g.cast(g.cast(a, "float64") * 0.5 - g.exp(g.cast(b, "float64") * 0.1), "float32")


def through_half(a, b):
    return g.cast(g.tanh(g.cast(a, "bfloat16")) + g.cast(b, "bfloat16"), "float32")


def normalised(a, b):
    return g.div(a, g.sqrt(g.mean(b * b, 1, keepdims=True) + 1.0))


def cross(a, b):
    return g.mul(g.sum(a, 0, keepdims=True), b)


def ordered(a, b):
    """The largest of each row, added in their order to where they stood; masked softmax of that."""
    values, places = g.top_k(a, 3, 1)
    y = g.scatter_elements(b, places, g.cumsum(values, 1), 1, "add")
    return g.masked_softmax(y, g.less(g.gather_elements(y, g.argmin(a, 1, True), 1), y))


def bits(a, b):
    """Quotients and bits of whole numbers, and logic that chooses by them."""
    whole = g.cast(g.round(a * 8.0), "int32")
    odd = g.equal(whole % 2, 1) & ~g.isnan(b)
    return g.where(odd, g.elu(b), g.cast((whole // 3) ^ (whole >> 1), "float32"))


ROW = g.constant(np.linspace(-1, 1, COLUMNS), dtype="float32")
TABLE = g.constant(np.sin(np.arange(ROWS * COLUMNS)).reshape(ROWS, COLUMNS), dtype="float32")


UNARY = [
    lambda x: g.matmul(x * ROW, g.constant(np.eye(COLUMNS)[::-1], dtype="float32")),
    lambda x: g.layer_norm(x, name="norm"),
    lambda x: g.dropout(x, 0.25),
    g.relu, g.tanh, g.sigmoid, g.silu, g.gelu, g.softmax, g.log_softmax, g.neg,
    lambda x: x + g.normal((ROWS, COLUMNS), scale=0.1), lambda x: g.stop_gradient(g.sin(x)) * x,
    g.stop_gradient, lambda x: g.clip(x, -1.0, 1.0), lambda x: g.power(g.abs(x) + 0.5, g.cos(x)),
    lambda x: g.leaky_relu(x, 0.1), lambda x: x * 0.5, lambda x: x + 0.25,
    lambda x: g.cumsum(x, 0, reverse=True),
    lambda x: g.reshape(g.reshape(x, (-1,)), (ROWS, COLUMNS)),
    lambda x: g.broadcast_to(g.max(x, 1, keepdims=True), (ROWS, COLUMNS)),
]  # fmt: skip
BINARY = [
    g.add, g.sub, g.mul, g.maximum, halves, through_views, top_rows, normalised, cross,
    spread_cut, counted, through_double, through_half, ordered, bits,
    lambda a, b: g.add(a, a[1:2]),  # an operand, and a view of it
    lambda a, b: g.where(g.less(a, TABLE), a, b),
    lambda a, b: g.matmul(g.matmul(a, b, transpose_b=True), b),
]  # fmt: skip


@st.composite
def networks(draw, max_ops: int = 12) -> Network:
    """A network of up to `max_ops` random steps, with mirror counts from {0, 1, 2}."""
    x = g.input("x", (ROWS, COLUMNS))
    labels = g.input("labels", (ROWS,), "int32")
    values = [x]
    for number in range(draw(st.integers(1, max_ops))):
        with g.scope(f"step{number}"), g.mirror(draw(st.integers(0, 2))):
            a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
            kind = draw(st.sampled_from(["unary", "binary", "again", "linear", "frozen"]))
            if kind == "unary":
                value = draw(st.sampled_from(UNARY))(a)
            elif kind == "binary":
                value = draw(st.sampled_from(BINARY))(a, b)
            elif kind == "again":  # a subexpression that is there twice
                value = g.add(g.tanh(a), g.mul(g.tanh(a), 0.5))
            else:
                value = g.linear(a, COLUMNS, trainable=kind == "linear")
            if draw(st.booleans()):
                builder.keep(value)
            values.append(value)
    with g.scope("head"):
        logits = g.linear(values[-1], 3)
    loss = g.softmax_cross_entropy(logits, labels)
    loss = g.add(loss, g.mean(draw(st.sampled_from(values))))
    chosen = draw(st.lists(st.sampled_from([*values, logits]), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    feeds = [
        {
            "x": rng.standard_normal((ROWS, COLUMNS)).astype(np.float32),
            "labels": rng.integers(0, 3, ROWS).astype(np.int32),
        }
        for _ in range(2)
    ]
    return Network(loss, {f"extra{i}": value for i, value in enumerate(chosen)}, feeds)


OPTIMIZERS = [
    g.optim.SGD(0.1),
    g.optim.Momentum(0.1, weight_decay=0.01),
    g.optim.Adam(0.01),
    g.optim.AdamW(0.01),
]
