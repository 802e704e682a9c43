"""Channels-last strides of convolutional networks on a GPU, and nothing of it on the CPU."""

import functools
import json
import random
from dataclasses import replace

import pytest

import graphc as g
from graphc.codegen.native import NativeTarget
from graphc.codegen.workspace import gpu_workspace
from graphc.devices.device import CPU, DEVICES
from graphc.errors import PlanError
from graphc.ir.op import REGISTRY
from graphc.ir.types import channels_last_strides, contiguous_strides, memory_order, pieces
from graphc.layouts import layouts
from graphc.memory.allocate import Allocation
from graphc.models import densenet121, gpt2, mlp, mobilenet_v2, resnet, unet, vit
from graphc.ops.elementwise import Elementwise
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.plans.json_form import read_plan_json
from graphc.target import target_of

H200 = DEVICES["h200"]
NETWORKS = {
    "resnet": lambda: resnet(batch=2, image=32, classes=5, units=(1, 2, 1, 1)),
    "unet": lambda: unet(batch=2, image=16, width=4, depth=2),
    "densenet": lambda: densenet121(batch=2, image=64, growth=8, blocks=(3, 3), classes=5),
    "mobilenet": lambda: mobilenet_v2(batch=2, image=32, classes=5),
}
OPTIONS = {
    "plain": {},
    "none": {"allocate": "none"},
    "inplace": {"allocate": "inplace"},
    "sharing": {"allocate": "sharing", "recompute": "sublinear"},
    "sublinear": {"recompute": "sublinear"},
    "optimal": {"recompute": "optimal"},
}


@functools.cache
def planned(network, device="cuda", **options):
    return g.plan(network(), optimizer=g.optim.Adam(1e-3), device=device, **options)


def strides_of(plan, value):
    return plan.placements[value].strides or contiguous_strides(value.type)


def is_map(value):
    """Whether channels-last and row-major are two things for it."""
    return value.type.rank == 4 and value.shape[1] > 1 and value.shape[2] * value.shape[3] > 1


def is_channels_last(plan, value):
    last = channels_last_strides(value.type)
    return memory_order(value.shape, strides_of(plan, value)) == memory_order(value.shape, last)


QUICK = {
    "resnet": ("plain", "inplace", "sublinear", "optimal"),
    "unet": ("plain", "none", "sharing", "sublinear"),
    "densenet": ("plain", "none", "sharing"),
    "mobilenet": ("sublinear",),
}


@pytest.mark.parametrize(
    ("network", "options"),
    [
        pytest.param(
            network, options, id=f"{name}-{label}",
            marks=[pytest.mark.slow] if label not in QUICK[name] else [],
        )
        for name, network in NETWORKS.items()
        for label, options in OPTIONS.items()
    ],
)  # fmt: skip
def test_maps_and_weights_of_networks_lie_channels_last(network, options):
    """`g.plan` runs the checker; figures and a file are checked here."""
    plan = planned(network, **options)
    check_figures(plan)
    found = [v for v in plan.graph.values if is_map(v) and plan.placements[v].how != "view"]
    row_major = [v for v in found if not is_channels_last(plan, v)]
    assert len(found) > 40
    assert row_major == [value for value in plan.graph.inputs if is_map(value)]
    read = read_plan_json(plan.to_json()).plan
    check_plan(read)
    assert list(read.placements.values())[5].strides == list(plan.placements.values())[5].strides


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_nothing_is_copied_to_be_read(network):
    plan = planned(network, recompute="sublinear")
    copied = {
        (node.op.name, value.type)
        for node in plan.graph.nodes
        if any(plan.placements[value].how != "view" for value in node.outputs)
        for value in gpu_workspace(node, plan.device, plan.strided).copies
    }
    assert {name for name, _ in copied} <= {"matmul", "linear"}
    assert all(type.rank == 2 for _, type in copied)


OF_SEVERAL = [
    network if name in ("resnet", "densenet") else pytest.param(network, marks=pytest.mark.slow)
    for name, network in NETWORKS.items()
]


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_copy_lies_as_its_original_in_a_packed_plan(network):
    check_copies(planned(network, recompute="sublinear"))


@pytest.mark.parametrize("allocate", ["none", "inplace", "sharing"])
@pytest.mark.parametrize("network", OF_SEVERAL, ids=NETWORKS)
def test_a_copy_lies_as_its_original(network, allocate):
    check_copies(planned(network, allocate=allocate, recompute="sublinear"))


def check_copies(plan):
    def orders(node):
        return [memory_order(v.shape, strides_of(plan, v)) for v in node.outputs]

    copies = [node for node in plan.graph.nodes if node.copy_of in plan.graph.position]
    assert len(copies) > 5
    for node in copies:
        assert orders(node) == orders(node.copy_of)


def test_no_strategy_changes_the_order_of_axes():
    """So sums have one order, and the same bits."""
    for name in ("resnet", "unet", "densenet"):
        orders = []
        for allocate in ("none", "packed"):
            plan = planned(NETWORKS[name], allocate=allocate, reorder=False)
            values = plan.graph.values
            orders.append([memory_order(v.shape, strides_of(plan, v)) for v in values])
        assert orders[0] == orders[1]


@pytest.mark.parametrize("device", ["h200", "cpu"])
@pytest.mark.parametrize("network", OF_SEVERAL, ids=NETWORKS)
def test_values_lie_alike_in_every_order(network, device):
    """An allocation in another order takes the strides over; here they are worked out anew."""
    graph = planned(network, recompute="sublinear").graph
    given = Allocation(graph, NativeTarget(CPU) if device == "cpu" else target_of(H200))
    rng, waiting, order = random.Random(0), list(graph.nodes), []
    while waiting:
        placed = set(order)
        ready = [
            node for node in waiting if all(v.node is None or v.node in placed for v in node.inputs)
        ]
        rng.shuffle(ready)
        order += ready
        waiting = [node for node in waiting if node not in set(ready)]
    assert order != list(graph.nodes)
    found = given.in_order(order)
    assert found.graph.nodes == tuple(order)
    assert found.strides == layouts(found.graph, given.target)
    assert len(found.strides) > 40


def test_states_updates_and_gradients_of_a_weight_lie_alike():
    plan = planned(NETWORKS["resnet"])
    updates = [n for n in plan.graph.nodes if n.op.name == "adam_update"]
    maps = [n for n in updates if is_map(n.inputs[0])]
    assert len(maps) == 6
    for node in maps:
        alike = [v for v in (*node.inputs, *node.outputs) if v.type.rank == 4]
        assert len(alike) == 7
        assert {strides_of(plan, v) for v in alike} == {channels_last_strides(alike[0].type)}


@pytest.mark.parametrize("network", OF_SEVERAL, ids=NETWORKS)
def test_nothing_changes_on_the_cpu(network):
    graph = planned(network, "cpu").graph
    assert layouts(graph, target_of(CPU)) == {}
    assert layouts(graph, target_of(H200)) != {}


@pytest.mark.parametrize(
    "network",
    [
        lambda: gpt2(
            layers=2, width=16, heads=2, seq_len=8, batch=2, vocab=11, attention="composed"
        ),
        lambda: mlp(layers=2, hidden=8, inputs=8, classes=4, batch=4),
    ],
)
def test_graphs_without_convolutions_have_none(network):
    assert layouts(planned(network).graph, target_of(H200)) == {}


@pytest.mark.parametrize("options", [{}, {"recompute": "sublinear"}, {"allocate": "none"}], ids=str)
def test_fused_attention_writes_the_layout_of_the_projection(options):
    """So the heads of a position are one row of the next product's operand, without a copy."""
    sizes = {"layers": 2, "width": 32, "heads": 2, "seq_len": 16, "batch": 2, "vocab": 50}
    loss = g.models.gpt2(**sizes, drop=0.0, attention="fused")
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda", **options)
    written = 0
    for node in plan.graph.nodes:
        assert node.op.name != "reshape" or plan.placements[node.output].how == "view"
        if node.op.name in ("attention", "attention_gradient"):
            for value in node.outputs:
                if value.type.rank == 4:
                    _, heads, rows, _ = plan.strided[value]
                    assert rows > heads
                    written += 1
    assert written >= 2 * (1 + 3)


def test_heads_that_lie_outside_of_positions_stay_there():
    q, k, v = (g.input(name, (2, 3, 8, 16)) for name in "qkv")
    plan = g.plan(outputs=[g.attention(q, k, v, form="fused")], device="cuda")
    assert not plan.strided


@pytest.mark.parametrize("form", ["composed", "fused"])
def test_attention_stays_row_major_beside_a_convolution(form):
    """The patches of a vision transformer are maps; its heads are not.

    Only fused attention has layouts of its own: its rows are parts of the projection's.
    """
    sizes = {"batch": 2, "image": 16, "patch": 4, "layers": 1, "width": 16, "heads": 2}
    plan = planned(lambda: vit(**sizes, classes=3, attention=form))
    chosen = layouts(plan.graph, target_of(H200))
    names = {"state" if v.node is None else v.producer.op.name for v in chosen}
    own = {"attention", "attention_gradient"} if form == "fused" else set()
    assert names == {"state", "conv2d", "conv2d_weight_gradient", "adam_update"} | own
    for value, strides in chosen.items():
        if value.node is not None and value.producer.op.name in own:
            batch, heads, rows, width = strides
            assert batch > rows > heads > width == value.type.dtype.itemsize


def test_the_parts_of_a_concatenation_lie_inside_it():
    """Each channel range of a map, a piece for each place."""
    plan = planned(NETWORKS["densenet"], recompute="none")
    parts = [v for v in plan.graph.values if plan.placements[v].how == "part" and is_map(v)]
    assert len(parts) >= 4
    for value in parts:
        whole = plan.placements[value].over
        assert strides_of(plan, value) == strides_of(plan, whole)
        assert pieces(value.type, strides_of(plan, value)) in (
            1, value.shape[0] * value.shape[2] * value.shape[3],
        )  # fmt: skip


def conv_then_relu():
    """A plan, a map, and the map that takes its bytes."""
    x = g.input("x", (2, 3, 8, 8))
    h = g.conv2d(x, 4, 3, padding=1, bias=False)
    plan = g.plan(outputs=[g.relu(h)], device="cuda")
    first, second = (node.output for node in plan.graph.nodes)
    return plan, first, second


def test_an_output_takes_the_bytes_of_an_operand_that_lies_alike():
    plan, first, second = conv_then_relu()
    assert plan.placements[second].how == "over"
    assert strides_of(plan, first) == strides_of(plan, second) == (1024, 4, 128, 16)
    assert plan.buffers[plan.placements[first].buffer].bytes == first.type.bytes


BREAKS = {
    "row-major over channels-last": (1024, 256, 32, 4),
    "rows and columns exchanged": (1024, 4, 16, 128),
    "bytes twice": (1024, 4, 64, 16),
    "beyond the buffer": (2048, 4, 128, 16),
    "between elements": (1024, 2, 128, 16),
}


@pytest.mark.parametrize("strides", BREAKS.values(), ids=BREAKS)
def test_the_checker_finds_a_map_that_is_misplaced(strides):
    plan, _, second = conv_then_relu()
    place = replace(plan.placements[second], strides=strides)
    with pytest.raises(PlanError):
        check_plan(replace(plan, placements={**plan.placements, second: place}))


def test_the_checker_accepts_strided_states_for_a_gpu_only():
    plan, *_ = conv_then_relu()
    (weight,) = plan.graph.states
    assert strides_of(plan, weight) == channels_last_strides(weight.type)
    with pytest.raises(PlanError, match="placed as a view"):
        check_plan(replace(plan, device=CPU))
    (source,) = plan.graph.inputs
    place = replace(plan.placements[source], strides=channels_last_strides(source.type))
    with pytest.raises(PlanError, match="placed as a view"):
        check_plan(replace(plan, placements={**plan.placements, source: place}))


def test_the_checker_finds_an_update_that_lies_otherwise():
    plan = planned(NETWORKS["resnet"])
    node = next(n for n in plan.graph.nodes if n.op.name == "adam_update" and is_map(n.inputs[0]))
    new = node.outputs[-1]
    place = replace(plan.placements[new], strides=None)
    with pytest.raises(PlanError):
        check_plan(replace(plan, placements={**plan.placements, new: place}))


def test_flattening_a_map_is_a_copy():
    x = g.input("x", (2, 3, 8, 8))
    h = g.conv2d(x, 4, 3, padding=1, bias=False)
    plan = g.plan(outputs=[g.reshape(h, (2, 256))], device="cuda")
    assert plan.placements[plan.graph.nodes[-1].output].how != "view"
    one = g.reshape(g.conv2d(x, 4, 8), (2, 4))  # a map of one place lies both ways
    plan = g.plan(outputs=[one], device="cuda")
    assert plan.placements[plan.graph.outputs["output0"]].how == "view"


def test_declared_layouts_are_found():
    on_maps = {name for name, op in REGISTRY.items() if op.on_maps}
    convolutions = {name for name, op in REGISTRY.items() if op.convolves}
    assert convolutions == {"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"} <= on_maps
    by_kernel = on_maps - convolutions - {"batch_norm"}
    assert by_kernel
    assert all(REGISTRY[name].any_strides for name in by_kernel)
    updates = [op for op in REGISTRY.values() if op.must_overwrite]
    assert all(isinstance(op, Elementwise) for op in updates if "w" in op.must_overwrite.values())


def test_budgets_hold_for_maps_that_lie_channels_last():
    network = NETWORKS["densenet"]
    free, least = planned(network), planned(network, recompute="sublinear")
    budget = (free.arena_bytes + min(free.arena_bytes, least.arena_bytes)) // 2
    plan = planned(network, budget=budget)
    check_figures(plan)
    assert plan.arena_bytes <= budget
    assert json.loads(plan.to_json())["device"]["kind"] == "cuda"


@pytest.mark.parametrize(
    ("shape", "differs"),
    [
        ((2, 2, 1, 2), True),
        ((2, 2, 2, 1), True),
        ((1, 2, 1, 2), True),
        ((2, 1, 4, 4), False),
        ((2, 4, 1, 1), False),
    ],
)
def test_the_smallest_maps_that_lie_channels_last(shape, differs):
    """Two channels of two positions; with one of either both orders are the same."""
    n, c, h, w = shape
    x = g.input("x", (n, 3, h, w))
    y = g.conv2d(x, c, 1, bias=False)
    graph = g.plan(outputs={"y": g.relu(y) * 2.0}, device="cuda").graph
    found = layouts(graph, target_of(H200))
    maps = [value for node in graph.nodes for value in node.outputs if value.shape == shape]
    assert len(maps) >= 2
    for value in maps:
        assert found.get(value) == (channels_last_strides(value.type) if differs else None)
