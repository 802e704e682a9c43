"""Small and random elementwise graphs, and what groups a fused graph has."""

from hypothesis import strategies as st

import graphc as g
from graphc.devices.device import find_device
from graphc.ir.builder import trace
from graphc.memory.allocate import Allocation
from graphc.passes.fusion import elementwise as fusion
from graphc.passes.fusion import reductions
from graphc.target import target_of


def fused_nodes(graph):
    return [node for node in graph.nodes if node.op.name == "fused"]


def calls(graph):
    """The members of each group."""
    return [node.attributes.members for node in fused_nodes(graph)]


def traced(*outputs, **named):
    return trace({**{f"y{i}": y for i, y in enumerate(outputs)}, **named})


GPU = target_of(find_device("h200"))


def fuse(graph, recomputes=False):
    """Elementwise groups as a plan for a GPU has them."""
    return fusion.fuse(Allocation(graph, GPU), recomputes).graph


def fuse_reductions(graph, recomputes=False):
    """Reductions that compute their operands, as a plan for a GPU has them."""
    return reductions.fuse_reductions(Allocation(graph, GPU), recomputes)


X, Y = g.input("x", (4, 6)), g.input("y", (4, 6))
ROW = g.input("row", (6,))
SQUARE = g.input("square", (6, 6))


def made():
    """A tensor that may be overwritten, unlike an input."""
    return g.matmul(X, SQUARE)


UNARY = [
    g.relu, g.tanh, g.sigmoid, g.exp, g.neg, g.silu, g.gelu,
    lambda x: x * 0.5, lambda x: x + 0.25, lambda x: x**2.0,
]  # fmt: skip
BINARY = [g.add, g.sub, g.mul, g.maximum, g.div]


@st.composite
def elementwise(draw):
    """Random elementwise graphs in any float type, with casts, choices and readers outside."""
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    shapes = [(5, 7), (5, 7), (7,), (5, 1), ()]
    inputs = [g.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    values = list(inputs)
    outputs = []
    for _ in range(draw(st.integers(2, 25))):
        a, b, c = (draw(st.sampled_from(values[-6:] + inputs)) for _ in range(3))
        kind = draw(st.sampled_from(["unary", "binary", "choice", "cast", "sum"]))
        if kind == "unary":
            y = draw(st.sampled_from(UNARY))(a)
        elif kind == "binary":
            y = draw(st.sampled_from(BINARY))(a, g.cast(b, a.type.dtype))
        elif kind == "choice":
            b, c = (g.cast(x, a.type.dtype) for x in (b, c))
            y = g.where(g.less(a, b), b, c)
        elif kind == "cast" and dtype != "float64":
            y = g.cast(a, draw(st.sampled_from(["float32", "float16", "bfloat16"])))
        else:
            y = a + g.sum(a, keepdims=True) if a.shape else a * a
        values.append(y)
        if draw(st.integers(0, 5)) == 0:
            outputs.append(y)
    return {f"y{i}": y for i, y in enumerate([*outputs, values[-1]])}
