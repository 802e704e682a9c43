"""Reductions that compute their operands: the same bits, fewer nodes, no more bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes.fusion.graphs import GPU, ROW, X, Y, elementwise, fuse, fuse_reductions, made, traced
from properties.oracle import run_unplanned
from properties.strategies import examples
from runtime.emulated_gpu.networks import bits, fed, on_gpu

import graphc as g
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import STEPS, make_plan
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.ops.reduce import square_sum
from graphc.passes.fusion.elementwise import MOST_INPUTS
from graphc.plans.check.check_plan import check_plan
from graphc.plans.json_form import plan_to_json, read_plan_json
from graphc.runtime.profile import random_feeds


def reductions(graph):
    return [node for node in graph.nodes if node.op.name == "fused_reduce"]


def found(*outputs, **named):
    """The members and the reduction of each fused node, after a check that the graph is sound."""
    graph = fuse_reductions(fuse(traced(*outputs, **named)))
    verify(graph)
    return [(n.attributes.members, n.attributes.reduction) for n in reductions(graph)]


# --- what is fused ---


def test_a_group_and_its_sum_are_one_node():
    graph = fuse_reductions(fuse(traced(g.sum(g.relu(X + ROW), 0, keepdims=True))))
    (node,) = graph.nodes
    assert node.inputs == (X, ROW)
    given = node.attributes
    assert given.members == ("add(x0, x1)", "relu(m0)")
    assert (given.reduction, given.axes, given.keepdims) == ("sum", (0,), True)
    assert given.order == (0, 1)
    assert node.output.shape == (1, 6)
    assert node.label == "add+relu+sum"


@pytest.mark.parametrize(
    "reduce",
    [g.sum, g.mean, g.max, square_sum],
    ids=["sum", "mean", "max", "squares"],
)
def test_a_lone_node_joins_any_reduction(reduce):
    assert found(reduce(X * X)) == [(("mul(x0, x0)",), reduce(X).node.op.name)]


def test_values_with_other_consumers_stay_in_their_group():
    """A cast that only the sum reads leaves the group."""
    h = g.relu(g.cast(made(), "bfloat16") * 2.0)
    total = g.sum(g.cast(h, "float32"), 0)
    graph = fuse_reductions(fuse(traced(h, total)))
    (node,) = reductions(graph)
    assert node.attributes.members == ("cast(x0, dtype=float32)",)
    assert node.inputs == (graph.outputs["y0"],)
    (group,) = [each for each in graph.nodes if each.op.name == "fused"]
    assert group.attributes.members == (
        "cast(x0, dtype=bfloat16)", "scale(m0, value=2.0)", "relu(m1)",
    )  # fmt: skip
    assert group.attributes.results == (2,)


def test_a_group_of_which_one_member_is_left_is_that_node():
    h = g.tanh(made())
    graph = fuse_reductions(fuse(traced(h, g.sum(h * h))))
    assert [node.op.name for node in graph.nodes] == ["matmul", "tanh", "fused_reduce"]
    assert reductions(graph)[0].inputs == (graph.outputs["y0"],)


def test_elementwise_ops_after_a_sum_join_it():
    half = g.cast(made(), "bfloat16")
    graph = fuse_reductions(fuse(traced(half, g.cast(g.sum(half, 0), "float32") * 2.0)))
    (node,) = reductions(graph)
    assert node.inputs == (graph.outputs["y0"],)
    assert node.attributes.members == ()
    assert node.attributes.after == ("cast(x0, dtype=float32)", "scale(m0, value=2.0)")
    assert graph.outputs["y1"] is node.output
    assert str(node.output.type) == "f32[6]"
    assert node.label == "sum+cast+scale"


def test_a_sum_takes_what_is_before_and_behind_it():
    root = square_sum(g.tanh(X)) ** 0.5
    (node,) = fuse_reductions(fuse(traced(root))).nodes
    assert node.attributes.members == ("tanh(x0)",)
    assert node.attributes.after == ("power(x0, value=0.5)",)


def test_a_result_that_others_need_is_stored():
    total = g.sum(X, 0)
    assert found(total * 2.0, total) == []
    assert found(total * 2.0, g.softmax(total, 0)) == []
    assert found(total * ROW) == []
    assert found(g.keep(total * 2.0)) == []
    assert found(g.max(g.input("level", (4, 3), "int32"), 0) * 2) == []
    with g.segment("one"):
        total = g.sum(X, 0)
    assert found(g.tanh(total)) == []


def test_a_sum_is_made_where_its_operand_was():
    total = g.sum(g.tanh(X))
    graph = fuse_reductions(fuse(traced(g.softmax(X), total)))
    assert len(reductions(graph)) == 1


def test_maps_are_summed_in_the_order_of_their_memory():
    h = g.conv2d(g.input("image", (2, 3, 6, 5)), 4, 3, name="c")
    (node,) = reductions(fuse_reductions(fuse(traced(g.mean(g.relu(h), (2, 3))))))
    assert node.attributes.order == (0, 2, 3, 1)
    x = g.input("x", (2, 6, 5, 3))
    (node,) = reductions(fuse_reductions(fuse(traced(g.mean(g.relu(x), (2, 3))))))
    assert node.attributes.order == (0, 1, 2, 3)


# --- what stays apart ---


def test_an_operand_that_is_read_twice_stays_apart():
    h = g.tanh(X)
    assert found(g.sum(h, 0), g.softmax(h)) == []
    assert found(g.sum(h, 0), h) == []
    assert found(g.sum(h, 0), h + g.exp(h)) == []
    assert found(g.sum(g.keep(g.tanh(X)))) == []
    assert found(g.keep(g.sum(h, 0)) * 2.0) == []


def test_other_nodes_and_other_dtypes_stay_apart():
    assert found(g.sum(g.softmax(X))) == []
    level = g.input("level", (4,), "int32")
    assert found(g.sum(level * 2)) == []
    assert found(g.max(g.less(X, Y))) == []
    assert found(g.sum(g.cast(g.tanh(X), "float64"))) == []


def test_segments_and_mirror_counts_stay_apart():
    with g.segment("one"):
        h = g.tanh(X)
    assert found(g.sum(h)) == []
    with g.mirror(1):
        h = g.tanh(X)
    assert found(g.sum(h)) == []


def test_a_sum_takes_no_more_inputs_than_a_group():
    total = g.tanh(X)
    for number in range(2 * MOST_INPUTS):
        total = total + g.input(f"summand{number}", (4, 6))
    graph = fuse_reductions(fuse(traced(g.sum(total))))
    assert max(len(node.inputs) for node in graph.nodes) <= MOST_INPUTS


def test_fusions_that_raise_the_peak_are_not_made():
    """Two large operands would wait for the sum, at the peak; the sum of them dies before it."""
    w = g.parameter("w", (64, 64))
    a, b = (g.matmul(g.input(name, (64, 64)), w) for name in "ab")
    c = g.matmul(w, w)
    graph = fuse(traced(g.sum(a + b + c, 0)))
    before = Allocation(graph, GPU).live_bytes
    assert reductions(fuse_reductions(graph, recomputes=True)) == []
    assert Allocation(fuse_reductions(graph), GPU).live_bytes <= before


# --- the same numbers ---


REDUCE = [g.sum, g.mean, g.max, lambda x: g.sum(x, 0), lambda x: g.mean(x, -1, keepdims=True)]


BEHIND = [lambda y: y, g.neg, lambda y: g.exp(y * 0.1) + 1.0, lambda y: y * y]


@st.composite
def reduced(draw):
    """Random elementwise graphs, of which some results are reduced."""
    outputs = draw(elementwise())
    for name, value in list(outputs.items()):
        reduce = draw(st.sampled_from([None, *REDUCE]))
        if reduce is not None and value.shape:
            outputs[name] = draw(st.sampled_from(BEHIND))(
                reduce(g.tanh(value) if draw(st.booleans()) else value)
            )
    return outputs


@examples(100)
@given(reduced())
def test_random_graphs_keep_their_bits(outputs):
    graph = traced(**outputs)
    plain = fuse(graph)
    fused = fuse_reductions(plain)
    verify(fused)
    assert len(reductions(fused)) <= len(graph.nodes)
    for recomputes in (False, True):
        each = fuse_reductions(plain, recomputes)
        assert Allocation(each, GPU).live_bytes <= Allocation(plain, GPU).live_bytes
    feeds = random_feeds(graph, 1)
    expected, arrays = run_unplanned(graph, feeds), run_unplanned(fused, feeds)
    for name, value in graph.outputs.items():
        assert arrays[fused.outputs[name]].tobytes() == expected[value].tobytes()
    text = g.format_graph(fused)
    assert g.format_graph(g.parse_graph(text)) == text


def mlp(dtype="float64"):
    """Gates whose gradients are sums of products, and a loss that is a mean of squares."""
    x, t = g.input("x", (9, 40), dtype), g.input("t", (9, 6), dtype)
    h = g.tanh(g.linear(x, 40, name="a")) * g.parameter("gate", (40,), dtype)
    h = h * g.parameter("factor", (), dtype)
    return g.mean((g.linear(h, 6, name="b") - t) ** 2.0)


def maps(dtype="float64"):
    x = g.input("x", (3, 2, 11, 9), dtype)
    h = g.relu(g.conv2d(x, 5, 3, name="a"))
    gate = g.sigmoid(g.mean(h * h, (2, 3), keepdims=True))
    return g.mean(g.max(g.exp(g.conv2d(h * gate, 4, 1, name="b") * 0.1), (2, 3)))


def mixed():
    """An image, which is row-major, beside maps that lie channels-last."""
    x = g.input("x", (2, 4, 9, 7))
    t = g.tanh(x)
    y = t + g.conv2d(x, 4, 3, padding=1, name="a")
    return g.mean(g.exp(y) * g.sum(t, (0, 2, 3), keepdims=True))


RUNS = {
    "mixed": (mixed, {}),
    "mlp": (mlp, {}),
    "mlp, float32": (lambda: mlp("float32"), {}),
    "mlp, bf16, clipped": (lambda: mlp("float32"), {"precision": "bf16", "clip_norm": 0.1}),
    "mlp, recomputed": (mlp, {"recompute": "sublinear"}),
    "mlp, accumulated": (mlp, {"accumulate": 3}),
    "maps": (maps, {}),
    "maps, bf16": (lambda: maps("float32"), {"precision": "bf16"}),
    "maps, recomputed": (lambda: maps("float32"), {"recompute": "recursive"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if "mlp," in n else []) for n in RUNS]
)
def test_steps_on_a_gpu_keep_their_bits(name):
    make, options = RUNS[name]
    plans = [
        g.plan(make(), optimizer=g.optim.Adam(0.01), device="cuda", fuse=fuses, **options)
        for fuses in (False, True)
    ]
    assert reductions(plans[1].graph) != []
    assert len(plans[1].graph.nodes) < len(plans[0].graph.nodes)
    results = []
    for plan in plans:
        check_plan(plan)
        program, _ = on_gpu(plan)
        losses = [program.step(fed(plan, seed))["loss"].tobytes() for seed in range(3)]
        results.append((losses, bits(program)))
    assert results[0] == results[1]
    assert len(set(results[0][0])) == 3


@pytest.mark.parametrize("name", RUNS)
def test_a_gpu_plan_is_no_larger(name):
    """Than one of groups alone."""
    make, options = RUNS[name]
    options = {"optimizer": g.optim.SGD(), "device": "cuda", "reorder": False, **options}
    plan = g.plan(make(), **options)
    others = [step for step in STEPS if step.name != "fuse-reductions"]
    without = make_plan(PlanOptions(make(), **options), others)
    assert reductions(plan.graph) != [] == reductions(without.graph)
    assert plan.live_bytes <= without.live_bytes


def test_a_cpu_has_none():
    for fuses in (None, False, True):
        plan = g.plan(mlp(), optimizer=g.optim.SGD(), fuse=fuses)
        assert reductions(plan.graph) == []


def test_a_plan_goes_through_json():
    plan = g.plan(mlp(), optimizer=g.optim.SGD(), device="cuda")
    again = read_plan_json(plan_to_json(plan)).plan
    check_plan(again)
    assert len(reductions(again.graph)) == len(reductions(plan.graph)) > 0
    assert again.text() == plan.text()
