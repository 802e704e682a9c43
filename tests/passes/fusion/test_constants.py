"""Constants of groups: the same bits without the nodes that fill them, and only where they may."""

import numpy as np
import pytest
from codegen.test_fused import run
from hypothesis import given
from hypothesis import strategies as st
from passes.fusion.graphs import BINARY, GPU, UNARY, calls, fuse, fuse_reductions, traced
from properties.oracle import run_unplanned
from properties.strategies import examples
from runtime.emulated_gpu.networks import bits, fed, on_gpu

import graphc as g
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import STEPS, make_plan
from graphc.errors import GraphError
from graphc.ir.builder import apply
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.models import lstm
from graphc.ops.fused import Fused, FusedAttributes
from graphc.passes.fusion.constants import inline_constants
from graphc.runtime.profile import random_feeds

# parameters never die, so nothing hinders a group
X, Y = g.parameter("x", (4, 6)), g.parameter("y", (4, 6))
ROW, SQUARE = g.parameter("row", (6,)), g.parameter("square", (6, 6))


def inlined(*outputs, **named):
    """The graph with groups and their constants, after a check that it is sound."""
    graph = inline_constants(fuse(traced(*outputs, **named)))
    verify(graph)
    return graph


def fills(graph):
    return [node for node in graph.nodes if node.op.name == "full"]


# --- what is put in ---


def test_a_constant_is_part_of_its_member():
    graph = inlined(g.tanh(X) * g.full((), 0.1))
    assert calls(graph) == [("tanh(x0)", f"mul(m0, {float(np.float32(0.1))!r})")]
    (node,) = graph.nodes
    assert node.inputs == (X,)
    graph = inlined(g.maximum(g.tanh(X), g.full((6,), -2.5)))
    assert calls(graph) == [("tanh(x0)", "maximum(m0, -2.5)")]


def test_inputs_keep_their_order():
    graph = inlined((g.full((), 0.5) + X) * ROW)
    assert calls(graph) == [("add(0.5, x0)", "mul(m0, x1)")]
    (node,) = graph.nodes
    assert node.inputs == (X, ROW)


def test_views_of_constants_are_constants():
    rows = g.broadcast_to(g.reshape(g.full((), 0.5), (1, 1)), (4, 6))
    assert calls(inlined(g.tanh(X) * rows)) == [("tanh(x0)", "mul(m0, 0.5)")]


def test_a_constant_that_others_read_stays_for_them():
    half = g.full((4, 6), 0.5)
    graph = inlined(g.tanh(X) * half, g.matmul(half, SQUARE))
    assert calls(graph) == [("tanh(x0)", "mul(m0, 0.5)")]
    assert len(fills(graph)) == 1


def test_reductions_have_constants():
    graph = fuse_reductions(fuse(traced(g.sum(g.tanh(X) * g.full((), 0.5), 0))))
    (node,) = inline_constants(graph).nodes
    assert node.attributes.members == ("tanh(x0)", "mul(m0, 0.5)")


# --- what is not ---


@pytest.mark.parametrize(
    "make",
    [
        lambda: g.exp(g.full((4, 6), 0.5)) * X,  # a compiler's exponential is not a GPU's
        lambda: g.tanh(g.where(g.less(X, Y), g.full((), 1.0), g.full((), 2.0))),
        lambda: g.tanh(ROW + g.full((4, 6), 0.5)),  # the shape is the constant's
        lambda: g.tanh(X * g.full((), -0.0)),
        lambda: g.tanh(X * g.full((), float("inf"))),
        lambda: g.tanh(X * g.keep(g.full((), 0.5))),
        lambda: g.tanh(g.cast(X, "bfloat16") * g.full((), 0.1, "bfloat16")),
        lambda: g.tanh(g.cast(g.full((4, 6), 0.5), "bfloat16")),
    ],
)
def test_constants_that_could_change_bits_stay_inputs(make):
    graph = inlined(make())
    assert len(calls(graph)) == 1
    assert fills(graph) != []


def test_a_graph_without_constants_stays_as_it_is():
    graph = fuse(traced(g.tanh(X) * Y))
    assert inline_constants(graph) is graph
    alone = traced(g.matmul(g.full((4, 6), 0.5), SQUARE))
    assert inline_constants(alone) is alone


# --- the op ---


def test_a_constant_has_the_dtype_of_the_other_floats():
    x = g.input("half", (3,), "float16")
    members = ("less(x0, 0.25)", "where(m0, -1.5, x0)")
    node = apply(Fused, x, attributes=FusedAttributes(members, (0, 1)))
    assert [str(value.type.dtype) for value in node.outputs] == ["bool", "float16"]


@pytest.mark.parametrize("members", [("neg(0.5)",), ("less(x0, 0.5)", "where(m0, 0.5, 1.0)")])
def test_a_constant_alone_is_refused(members):
    attributes = FusedAttributes(members, (len(members) - 1,))
    with pytest.raises(GraphError, match="a constant needs a float operand"):
        apply(Fused, X, attributes=attributes)


# --- the same numbers ---


@st.composite
def with_constants(draw):
    """Random elementwise graphs on a few inputs and many constants, in any float type."""
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
    tensors = [g.input(f"x{i}", shape, dtype) for i, shape in enumerate([(5, 7), (7,)])]
    numbers = st.sampled_from([0.0, -0.0, 0.1, 0.5, -3.0, 1.0, 2.0**-20])
    constants = [g.full(draw(st.sampled_from([(), (7,), (5, 7)])), draw(numbers), dtype)
                 for _ in range(4)]  # fmt: skip
    constants.append(g.broadcast_to(constants[0], (5, 7)))
    values = list(tensors)
    for _ in range(draw(st.integers(2, 12))):
        a, b = draw(st.sampled_from(values[-3:])), draw(st.sampled_from([*values, *constants]))
        kind = draw(st.sampled_from(["unary", "binary", "turned", "choice"]))
        if kind == "unary":
            y = draw(st.sampled_from(UNARY))(a)
        elif kind == "choice":
            y = g.where(g.less(b, a), a, b)
        else:
            y = draw(st.sampled_from(BINARY))(*((a, b) if kind == "binary" else (b, a)))
        values.append(y)
    return {"y": values[-1], "z": values[-2] * 0.5}


@examples(150)
@given(with_constants())
def test_random_graphs_keep_their_bits(outputs):
    graph = fuse(traced(**outputs))
    found = inline_constants(graph)
    verify(found)
    assert Allocation(found, GPU).live_bytes <= Allocation(graph, GPU).live_bytes
    feeds = random_feeds(graph, 1)
    expected, arrays = run_unplanned(graph, feeds), run_unplanned(found, feeds)
    for name, value in graph.outputs.items():
        assert arrays[found.outputs[name]].tobytes() == expected[value].tobytes()
    text = g.format_graph(found)
    assert g.format_graph(g.parse_graph(text)) == text


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_kernels_keep_their_bits(dtype):
    a, b = g.parameter("a", (6, 21), dtype), g.parameter("b", (6, 21), dtype)
    quarter, three = g.full((), 0.25, dtype), g.full((21,), -3.0, dtype)
    h = g.maximum(three / (a * quarter - b), g.where(g.less(a, quarter), quarter, b))
    graph = fuse(traced(h, g.exp(three * a) + h))
    found = inline_constants(graph)
    assert [node.op.name for node in found.nodes] == ["fused"]
    assert fills(graph) != []
    rng = np.random.default_rng(4)
    feeds = {s.name: rng.normal(size=s.shape).astype(s.type.dtype.numpy) for s in graph.states}
    assert run(found, feeds) == run(graph, feeds)


def test_steps_on_a_gpu_keep_their_bits():
    """The factor that clips gradients is made of constants."""

    def stepped(steps):
        loss = lstm(seq_len=3, batch=2, layers=1, hidden=6, inputs=5, classes=7)
        options = PlanOptions(loss, optimizer=g.optim.Adam(0.01), device="cuda", clip_norm=0.1)
        plan = make_plan(options, steps)
        program, _ = on_gpu(plan)
        for seed in range(3):
            program.step(fed(plan, seed))
        return plan, bits(program)

    plan, found = stepped(STEPS)
    without, wanted = stepped([step for step in STEPS if step.name != "inline-constants"])
    assert found == wanted
    assert len(fills(plan.graph)) < len(fills(without.graph))
    assert len(plan.graph.nodes) < len(without.graph.nodes)


def test_values_computed_from_constants_are_read_by_their_group():
    graph = inlined(g.relu(g.matmul(X, SQUARE) + g.full((), 1.0)))
    assert [node.op.name for node in graph.nodes] == ["matmul", "fused"]
