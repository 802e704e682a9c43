"""Fused graphs: the same bits, fewer nodes, no more bytes, and only where fusing is sound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.test_zoo import SMALL
from properties.oracle import run_unplanned
from properties.strategies import OPTIMIZERS, examples, networks

import graphc as g
from graphc.allocation.allocate import live_bytes
from graphc.errors import OptionError
from graphc.ir.builder import trace
from graphc.ir.device import find_device
from graphc.ir.op import REGISTRY
from graphc.ir.verify import verify
from graphc.passes.fusion.elementwise import MOST_INPUTS, MOST_MEMBERS, MOST_OUTPUTS, fuse
from graphc.plans.check_plan import check_plan
from graphc.plans.json_form import plan_to_json, read_plan_json
from graphc.runtime.profile import random_feeds


def fused_nodes(graph):
    return [node for node in graph.nodes if node.op.name == "fused"]


def calls(graph):
    """The members of each group."""
    return [node.attributes.members for node in fused_nodes(graph)]


def traced(*outputs, **named):
    return trace({**{f"y{i}": y for i, y in enumerate(outputs)}, **named})


GPU = find_device("h200")
X, Y = g.input("x", (4, 6)), g.input("y", (4, 6))
ROW = g.input("row", (6,))
SQUARE = g.input("square", (6, 6))


def made():
    """A tensor that may be overwritten, unlike an input."""
    return g.matmul(X, SQUARE)


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


def test_what_is_read_outside_is_a_further_output():
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


def test_what_lies_between_cannot_be_skipped():
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


# --- the same numbers ---


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


@examples(120)
@given(elementwise())
def test_random_elementwise_graphs_keep_their_bits(outputs):
    graph = trace(outputs)
    found = fuse(graph)
    verify(found)
    assert len(found.nodes) <= len(graph.nodes)
    assert live_bytes(found, device=GPU) <= live_bytes(graph, device=GPU)  # without registers
    feeds = random_feeds(graph, 1)
    expected, arrays = run_unplanned(graph, feeds), run_unplanned(found, feeds)
    program = g.compile(outputs=outputs, fuse=True, poison=True, reorder=False)
    results = program.step({source.name: feeds[source] for source in program.graph.inputs})
    for name, value in graph.outputs.items():
        wanted = expected[value].tobytes()
        assert arrays[found.outputs[name]].tobytes() == wanted
        assert results[name].tobytes() == wanted
    text = g.format_graph(found)
    assert g.format_graph(g.parse_graph(text)) == text


@examples(40)
@given(networks(), st.sampled_from(OPTIMIZERS), st.sampled_from(["none", "cheap", "sublinear"]))
def test_training_keeps_its_bits(network, optimizer, recompute):
    runs = []
    for fuses in (False, True):
        program = g.compile(
            network.loss,
            outputs=network.outputs,
            optimizer=optimizer,
            recompute=recompute,
            fuse=fuses,
            poison=True,
        )
        steps = [program.step(feed) for feed in network.feeds]
        results = [{name: array.tobytes() for name, array in step.items()} for step in steps]
        runs.append((results, {name: array.tobytes() for name, array in program.states.items()}))
    assert runs[0] == runs[1]


@examples(60)
@given(networks(), st.sampled_from(OPTIMIZERS))
def test_a_gpu_plan_is_no_larger(network, optimizer):
    plans = [
        g.plan(network.loss, optimizer=optimizer, device="cuda", fuse=fuses, reorder=False)
        for fuses in (False, True)
    ]
    assert plans[1].live_bytes <= plans[0].live_bytes


OPTIONS = {
    "plain": {},
    "sublinear": {"recompute": "sublinear"},
    "budget": {"max_extra_flops": 0.3},
    "bf16": {"precision": "bf16", "clip_norm": 1.0},
    "fp16": {"precision": "fp16", "recompute": "recursive"},
}
ZOO = [
    *(("lstm", option) for option in OPTIONS),
    ("gpt2", "budget"), ("mlp", "bf16"), ("resnet", "bf16"),
    pytest.param("resnet", "sublinear", marks=pytest.mark.slow),
    ("unet", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "option"), ZOO)
def test_networks_keep_their_bits(name, option):
    runs = []
    for fuses in (False, True):
        program = g.compile(
            SMALL[name](), optimizer=g.optim.Adam(0.01), fuse=fuses, poison=True, **OPTIONS[option]
        )
        check_plan(program.plan)
        assert bool(fused_nodes(program.graph)) <= fuses
        feeds = {s.name: a for s, a in random_feeds(program.graph, 2).items()}
        losses = [program.step(feeds)["loss"].tobytes() for _ in range(3)]
        runs.append((losses, {n: a.tobytes() for n, a in program.states.items()}))
    assert runs[0] == runs[1]
    assert len(set(runs[0][0])) == 3 or option == "fp16"  # which may skip steps


@pytest.mark.parametrize("name", SMALL)
def test_a_gpu_plan_of_a_network_is_no_larger(name):
    plans = [
        g.plan(SMALL[name](), optimizer=g.optim.Adam(0.01), device="cuda", fuse=f, reorder=False)
        for f in (False, True)
    ]
    assert len(plans[1].graph.nodes) <= len(plans[0].graph.nodes)
    assert plans[1].live_bytes <= plans[0].live_bytes
    assert plans[1].recomputation.nodes == 0


def test_an_lstm_is_mostly_groups():
    plan = g.plan(SMALL["lstm"](), optimizer=g.optim.SGD(), device="cuda")
    left = [
        node
        for node in plan.graph.nodes
        if REGISTRY["sigmoid"] is node.op and node.phase == "forward"
    ]
    assert max(len(members) for members in calls(plan.graph)) >= 7
    assert len(left) <= len(calls(plan.graph))


def test_a_plan_of_groups_goes_through_json():
    plan = g.plan(SMALL["lstm"](), optimizer=g.optim.SGD(), fuse=True)
    again = read_plan_json(plan_to_json(plan)).plan
    check_plan(again)
    assert calls(again.graph) == calls(plan.graph) != []
    assert str(again) == str(plan)


# --- the option ---


def test_groups_are_for_gpus_unless_asked_for():
    def made(**options):
        return g.plan(SMALL["lstm"](), optimizer=g.optim.SGD(), **options)

    assert not fused_nodes(made().graph)
    assert fused_nodes(made(device="cuda").graph)
    assert fused_nodes(made(fuse=True).graph)
    assert not fused_nodes(made(device="cuda", fuse=False).graph)
    assert "fuse" not in made().settings
    assert "fuse" not in made(device="cuda", fuse=True).settings
    assert made(fuse=True).settings["fuse"] is True
    assert made(device="cuda", fuse=False).settings["fuse"] is False


def test_the_option_is_a_bool():
    with pytest.raises(OptionError, match="fuse is True, False or None, got 'yes'"):
        g.plan(g.sum(g.tanh(X)), fuse="yes")


def test_a_frontier_of_groups():
    def loss():
        h = g.input("x", (64, 6))
        for number in range(6):
            h = g.tanh(g.linear(h, 6, name=f"layer{number}") * 2.0)
        return g.mean(h)

    points = [g.frontier(loss(), optimizer=g.optim.SGD(), fuse=fuses) for fuses in (False, True)]
    assert points[0] != points[1]


def test_the_dump_shows_the_pass(tmp_path):
    for recompute, name in (("none", "fuse"), ("sublinear", "fuse-recomputed")):
        folder = tmp_path / name
        options = {"optimizer": g.optim.SGD(), "recompute": recompute, "dump": folder}
        g.plan(SMALL["lstm"](), fuse=True, **options)
        (found,) = folder.glob(f"*-{name}.txt")
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
