"""Elementwise groups: what becomes one, what stays apart as fusing is not sound, the option."""

import functools

import pytest
from passes.fusion.graphs import GPU, ROW, X, Y, calls, fuse, fused_nodes, made, traced

import graphc as g
from graphc.errors import OptionError
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.passes.fusion.elementwise import MOST_INPUTS, MOST_MEMBERS, MOST_OUTPUTS

# --- what becomes a group ---


def test_a_chain_is_one_node():
    graph = fuse(traced(g.relu((X + ROW) * 0.5)))
    (node,) = graph.nodes
    assert node.attributes.members == ("add(x0, x1)", "scale(m0, value=0.5)", "relu(m1)")
    assert node.attributes.results == (2,)
    assert node.inputs == (X, ROW)
    assert graph.outputs["y0"] is node.output


def test_branches_that_meet_are_one_node():
    a, b = made(), made()
    left, right = g.tanh(a), g.exp(b)
    graph = fuse(traced(left * right - left))
    assert calls(graph) == [("tanh(x0)", "exp(x1)", "mul(m0, m1)", "sub(m2, m0)")]


def test_values_read_outside_a_group_are_its_outputs():
    h = g.tanh(made())
    graph = fuse(traced(h * h, g.sum(h)))
    (node,) = fused_nodes(graph)
    assert [value.shape for value in node.outputs] == [(4, 6), (4, 6)]
    assert graph.position[node] < graph.uses[node.outputs[0]][0]


def test_a_scope_is_that_of_the_last_member():
    with g.scope("first"):
        h = g.tanh(X)
    with g.scope("second"):
        y = h * 2.0
    (node,) = fuse(traced(y)).nodes
    assert node.label == "second/tanh+scale"


def test_lone_nodes_stay_as_they_are():
    graph = traced(g.tanh(g.softmax(g.exp(X))))
    assert fuse(graph) is graph


def test_16_bit_casts_are_members():
    graph = fuse(traced(g.cast(g.tanh(g.cast(made(), "bfloat16")) * 2.0, "float32")))
    assert calls(graph) == [
        (
            "cast(x0, dtype=bfloat16)", "tanh(m0)", "scale(m1, value=2.0)",
            "cast(m2, dtype=float32)",
        )
    ]  # fmt: skip


# --- what stays apart ---


def apart(*outputs, **named):
    """The groups, after a check that the graph is sound."""
    graph = fuse(traced(*outputs, **named))
    verify(graph)
    return calls(graph)


def test_other_shapes_stay_apart():
    assert apart(X * g.tanh(ROW)) == []


def test_other_layouts_stay_apart():
    """A map of a convolution lies channels-last on a GPU; what is made of an image does not."""
    x = g.input("image", (2, 4, 6, 5))
    t = g.tanh(x)
    y = g.exp(t + g.conv2d(x, 4, 3, padding=1, name="layout"))
    assert apart(y, t) == [("add(x0, x1)", "exp(m0)")]


def test_other_arithmetic_stays_apart():
    assert apart(g.cast(g.tanh(X), "float64") * 2.0) == []
    assert apart(g.cast(g.less(X, Y), "int32") * 2) == []
    level = g.input("level", (4,), "int32")
    assert apart(level * 2 + 1) == []


def test_nodes_between_members_keep_them_apart():
    """tanh → sum → mul: the group would need the sum before it makes what is summed."""
    h = g.tanh(X)
    assert apart(h * g.sum(h, 0)) == []


def test_a_reader_on_the_way_ends_a_group():
    h = g.tanh(X)
    total = g.sum(h, 0)
    y = g.exp(h)  # behind the sum: a group of tanh and exp would come too late for it
    assert apart(total, y) == []


def test_kept_values_stay_apart():
    assert apart(g.exp(g.keep(g.tanh(X)))) == []


def test_segments_stay_apart():
    with g.segment("one"):
        h = g.tanh(X) * 2.0
    with g.segment("two"):
        y = g.exp(h) + 1.0
    assert apart(y) == [
        ("tanh(x0)", "scale(m0, value=2.0)"),
        ("exp(x0)", "shift(m0, value=1.0)"),
    ]


def test_mirror_counts_stay_apart():
    with g.mirror(1):
        h = g.tanh(X)
    assert apart(g.exp(h)) == []


def test_phases_stay_apart():
    plan = g.plan(g.sum(g.tanh(g.parameter("w", (4, 6)) * X)), optimizer=g.optim.SGD(), fuse=True)
    for node in fused_nodes(plan.graph):
        assert node.phase in ("forward", "gradient")
    assert {node.phase for node in fused_nodes(plan.graph)} == {"forward", "gradient"}


def test_copies_and_what_they_copy_stay_apart():
    with g.mirror(1):
        w = g.parameter("w", (4, 6))
        loss = g.sum(g.exp(g.tanh(w) * 2.0))
    (dw,) = g.gradient(loss, [w], mirror=lambda node: 1)
    graph = traced(dw, loss=loss)
    assert any(node.phase == "mirror" for node in graph.nodes)
    text = g.format_graph(fuse(graph))
    assert not [line for line in text.splitlines() if "fused" in line and "mirror" in line]
    assert g.format_graph(g.parse_graph(text)) == text


UPDATED = """graph {
  @w: f32[4] = parameter() {initial='uniform', scale=1.0}
  %g: f32[4] = input()
  %rate: f32[] = input()
  %0: f32[4] = scale(VIEW) {value=2.0}
  %1: f32[4] = sgd_update(@w, %g, %rate) {weight_decay=0.0} [update]
  %2: f32[4] = scale(%0) {value=3.0}
  output y = %2
}
"""


@pytest.mark.parametrize("through_a_view", [False, True])
def test_a_state_is_read_before_its_update(through_a_view):
    text = UPDATED.replace("VIEW", "%9" if through_a_view else "@w")
    if through_a_view:
        view = "  %9: f32[4] = slice(@w) {starts=(0,), stops=(4,), steps=(1,)}\n"
        text = text.replace("  %0:", f"{view}  %0:")
    graph = g.parse_graph(text)
    assert calls(fuse(graph)) == []
    harmless = text.replace("@w, %g, %rate)", "@v, %g, %rate)").replace(
        "  %g:", "  @v: f32[4] = parameter() {initial='uniform', scale=1.0}\n  %g:"
    )
    assert len(calls(fuse(g.parse_graph(harmless)))) == 1


def test_groups_end_at_their_limits():
    h = X
    for _ in range(2 * MOST_MEMBERS + 3):
        h = g.tanh(h)
    assert [len(members) for members in apart(h)] == [MOST_MEMBERS, MOST_MEMBERS, 3]
    total = X
    for number in range(MOST_INPUTS + 4):
        total = total + g.input(f"summand{number}", (4, 6))
    graph = fuse(traced(total))
    assert max(len(node.inputs) for node in fused_nodes(graph)) == MOST_INPUTS
    h, outputs = X, []
    for _ in range(MOST_OUTPUTS + 2):
        h = g.tanh(h)
        outputs.append(h)
    graph = fuse(traced(*outputs))
    assert max(len(node.outputs) for node in fused_nodes(graph)) <= MOST_OUTPUTS


def test_a_group_does_not_hold_more_than_it_saves():
    """The sum of two dies slower than the two: a product lies between the members."""
    w = g.parameter("w", (64, 64))
    a, b = (g.matmul(g.input(name, (64, 64)), w) for name in "ab")
    total = a + b
    c = g.matmul(g.matmul(w, w), w)
    graph = fuse(traced(g.sum(g.tanh(total + c))))
    assert calls(graph) == [("add(x0, x1)", "tanh(m0)")]


def test_for_recomputation_forward_groups_have_one_output():
    h = g.tanh(made())
    graph = traced(-(h * h), g.sum(h))
    assert len(fused_nodes(fuse(graph))[0].outputs) == 2
    assert calls(fuse(graph, recomputes=True)) == [("mul(x0, x0)", "neg(m0)")]


# --- the option ---


def gated():
    h = g.linear(X, 6)
    return g.mean(g.tanh(h) * g.sigmoid(h))


def test_groups_are_for_all_but_numpys_kernels_unless_asked_for():
    @functools.cache
    def made(**options):
        return g.plan(gated(), optimizer=g.optim.SGD(), **options)

    assert not fused_nodes(made(kernels="numpy").graph)
    assert fused_nodes(made(kernels="numpy", fuse=True).graph)
    assert fused_nodes(made().graph)
    assert not fused_nodes(made(fuse=False).graph)
    assert fused_nodes(made(device="cuda").graph)
    assert not fused_nodes(made(device="cuda", fuse=False).graph)
    assert "fuse" not in made().settings
    assert "fuse" not in made(device="cuda", fuse=True).settings
    assert "fuse" not in made(kernels="numpy").settings
    assert made(kernels="numpy", fuse=True).settings["fuse"] is True
    assert made(fuse=False).settings["fuse"] is False
    assert made(device="cuda", fuse=False).settings["fuse"] is False


def test_the_option_is_a_bool():
    with pytest.raises(OptionError, match="fuse must be True or False, or None, got 'yes'"):
        g.plan(g.sum(g.tanh(X)), fuse="yes")


def test_a_frontier_of_groups():
    points = [g.frontier(gated(), optimizer=g.optim.SGD(), fuse=fuses) for fuses in (False, True)]
    assert points[0] != points[1]


def test_the_dump_shows_the_pass(tmp_path):
    for recompute in ("none", "sublinear"):
        folder = tmp_path / recompute
        options = {"optimizer": g.optim.SGD(), "recompute": recompute, "dump": folder}
        g.plan(gated(), fuse=True, **options)
        (found,) = folder.glob("*-fuse.txt")
        assert "fused(" in found.read_text()


@pytest.mark.slow
def test_a_hundred_thousand_nodes():
    values = [X, Y]
    for number in range(100_000):
        values.append(values[-1] * values[-2 - number % 3] if number % 7 else g.tanh(values[-1]))
        if number % 11 == 0:
            values.append(g.softmax(values[-1]))
    graph = traced(values[-1])
    assert len(graph.nodes) > 100_000
    found = fuse(graph)
    verify(found)
    assert len(found.nodes) < len(graph.nodes) / 2


def test_groups_far_apart_may_not_raise_the_peak():
    """The input would be held for the last member, while more and more outputs are there."""

    def chosen(value):
        return g.where(g.less(value, value), value, value)

    x = g.input("x", (5, 7), "float64")
    first, other = chosen(x), g.relu(x)
    last = g.relu(first)
    small = [chosen(g.input(f"small{i}", (7,), "float64")) for i in range(2)]
    graph = traced(other, *small, chosen(other), chosen(last))
    found = fuse(graph)
    assert Allocation(found, GPU).live_bytes <= Allocation(graph, GPU).live_bytes
    assert len(fused_nodes(found)) > 0
