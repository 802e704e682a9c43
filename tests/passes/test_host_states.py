"""States in host memory: the graph, the order of copies, and what the checker rejects."""

import functools
from dataclasses import replace

import pytest
from runtime.states_on_host import planned

import graphc as g
from graphc import MeasuredCosts, format_graph, parse_graph
from graphc.devices.links import host_link
from graphc.errors import GraphError, OptionError, PlanError, ShapeError, TextError
from graphc.ir.graph import Graph, State
from graphc.ir.host_copies import fetched_state
from graphc.ir.verify import verify
from graphc.memory.order.overlap_state_copies import GROWTH, modeled_seconds
from graphc.models import gpt2, mlp
from graphc.ops.collective import Arrival
from graphc.ops.host_copy import (
    CopyToDevice,
    WriteBack,
    WrittenBack,
    begin_copy_to_device,
    begin_copy_to_host,
    begin_write_back,
    finish_copy,
    finish_write_back,
)
from graphc.planner.host_link import HostLink
from graphc.plans.check.check_plan import check_plan
from graphc.plans.copy_model import model_copies
from graphc.plans.cost_model import CostModel


@functools.cache
def plan_of():
    return planned(mlp(layers=3, hidden=24, inputs=16, batch=8))


@pytest.mark.parametrize("optimizer", [g.optim.SGD(0.1), g.optim.Momentum(0.1)])
def test_no_large_moment_is_an_error(optimizer):
    loss = mlp(layers=3, hidden=24, inputs=16, batch=8)  # its moments are smaller
    with pytest.raises(OptionError, match=r"moves no state: .* at least 64.00 KiB .*omit"):
        g.plan(loss, optimizer=optimizer, host_states="moments")


def node_of(plan, op, state):
    """The node of an op that copies a state."""
    return next(
        node
        for node in plan.graph.nodes
        if node.op.name == op and any(getattr(v, "name", "") == state for v in node.inputs)
    )


STATE = "adam/m/layer1/weight"


def ends(plan):
    """The write-back of a state, and the node that awaits it."""
    begin = node_of(plan, "write_back", STATE)
    return begin, next(n for n in plan.graph.nodes if n.awaited is begin)


def refused(plan, message, graph, copies=()):
    """Both the verification of graphs and the checker of plans reject a graph.

    `copies` has the values that the plan does not have, and those whose placements they get.
    """
    with pytest.raises(GraphError, match=message):
        verify(graph)
    placements = dict(plan.placements) | {new: plan.placements[old] for new, old in copies}
    kept = {value: placements[value] for value in graph.values}
    workspaces = {
        node: plan.workspaces[old]
        for old, node in zip(plan.graph.nodes, graph.nodes, strict=False)
        if old in plan.workspaces
    }
    with pytest.raises(PlanError, match=message):
        check_plan(replace(plan, graph=graph, placements=kept, workspaces=workspaces))


def rebuilt(graph, change):
    """The graph with changed operands, and pairs of its values and those of `graph`.

    `change(node, inputs)` returns the operands of a node, or None.
    """
    standing, nodes = {}, []
    for node in graph.nodes:
        inputs = tuple(standing.get(v, v) for v in node.inputs)
        made = node.reading(change(node, inputs) or inputs, None)
        standing.update(zip(node.outputs, made.outputs, strict=True))
        nodes.append(made)
    outputs = {name: standing.get(value, value) for name, value in graph.outputs.items()}
    return Graph(tuple(nodes), outputs), [(new, old) for old, new in standing.items()]


def test_a_state_on_the_host_is_updated_in_five_steps():
    plan = plan_of()
    fetch, (begin, end) = node_of(plan, "copy_to_device", STATE), ends(plan)
    arrival = node_of(plan, "arrival", STATE)
    (update,) = (n for n in plan.graph.nodes if arrival.output in n.inputs)
    new = next(y for y, x in update.replaced.items() if x is arrival.output)
    assert arrival.awaited is fetch
    assert begin.inputs == (new, fetch.inputs[0])
    assert end.inputs == (begin.output, new)
    steps = [plan.graph.position[node] for node in (fetch, arrival, update, begin, end)]
    assert steps == sorted(steps)
    places = [plan.placements[v] for v in (fetch.output, arrival.output, new)]
    assert len({place.buffer for place in places}) == 1
    assert plan.buffers[places[0].buffer].kind == "fetched"
    host = [plan.placements[v].buffer for v in (fetch.inputs[0], begin.output, end.output)]
    assert len(set(host)) == 1
    assert plan.buffers[host[0]].kind == "host"
    assert plan.bytes_by_kind["fetched"] > 0


def test_texts_and_files_keep_states_on_the_host(tmp_path):
    plan = plan_of()
    text = format_graph(plan.graph)
    assert "@adam/m/layer1/weight: f32[24,24] = moment() " in text
    assert "memory='host'" in text
    assert format_graph(parse_graph(text)) == text
    g.save_plan(plan, tmp_path / "plan.json")
    read = g.load_plan(tmp_path / "plan.json")
    assert read.to_json() == plan.to_json()
    assert read.host_state_bytes == plan.host_state_bytes
    with pytest.raises(TextError, match="memory must be one of"):
        parse_graph(text.replace("memory='host'", "memory='disk'"))
    assert f"of which states {plan.host_state_bytes:,}" in plan.text().replace("_", ",")
    assert plan.summary("mlp")["host_state_bytes"] == plan.host_state_bytes


def test_a_write_back_must_be_awaited():
    plan = plan_of()
    _, end = ends(plan)
    graph = plan.graph.in_order(node for node in plan.graph.nodes if node is not end)
    refused(plan, "no node waits for .*write_back", graph)


def test_an_update_does_not_read_a_state_on_the_host():
    plan = plan_of()
    arrival = node_of(plan, "arrival", STATE)
    host = arrival.inputs[1]

    def direct(node, inputs):
        if arrival.output not in node.inputs or node.op.copies_to or node.op.awaits:
            return None
        return tuple(
            host if x is arrival.output else y for x, y in zip(node.inputs, inputs, strict=True)
        )

    message = "adam_update reads @adam/m/layer1/weight, which is on the host|after .*adam_update"
    refused(plan, message, *rebuilt(plan.graph, direct))


def test_a_state_is_written_back_once():
    plan = plan_of()
    begin, end = ends(plan)
    again = g.ir.builder.apply(WriteBack, *begin.inputs)
    finish = g.ir.builder.apply(WrittenBack, again.output, again.inputs[0])
    at = plan.graph.position[end] + 1
    nodes = plan.graph.nodes
    graph = plan.graph.in_order([*nodes[:at], again, finish, *nodes[at:]])
    copies = [(again.output, begin.output), (finish.output, end.output)]
    message = "reads @adam/m/layer1/weight after|writes .* to @adam/m/layer1/weight, but"
    refused(plan, message, graph, copies)


def test_a_new_state_must_be_written_back():
    plan = plan_of()
    graph = plan.graph.in_order(n for n in plan.graph.nodes if n not in ends(plan))
    refused(plan, "the new content of @adam/m/layer1/weight, is not written back", graph)


def test_a_state_is_not_written_to_another():
    plan = plan_of()
    states = {s.name: s for s in plan.graph.states}
    other = states[STATE.replace("/m/", "/v/")]
    state = states[STATE]

    def swapped(node, inputs):
        if node.op.name != "write_back" or node.inputs[1] not in (state, other):
            return None
        return inputs[0], other if node.inputs[1] is state else state

    message = "but only the updated copy of a state"
    refused(plan, message, *rebuilt(plan.graph, swapped))


def test_nothing_is_fetched_once_the_write_back_has_begun():
    plan = plan_of()
    begin, end = ends(plan)
    fetch = node_of(plan, "copy_to_device", STATE)
    nodes = [node for node in plan.graph.nodes if node is not begin]
    graph = plan.graph.in_order([begin, *nodes])
    with pytest.raises(GraphError, match="before it is computed"):
        verify(graph)
    late = g.ir.builder.apply(CopyToDevice, begin.inputs[1])
    arrival = g.ir.builder.apply(Arrival, late.output, begin.inputs[1])
    at = plan.graph.position[end]
    nodes = plan.graph.nodes
    graph = plan.graph.in_order([*nodes[:at], late, arrival, *nodes[at:]])
    with pytest.raises(GraphError, match=r"reads @adam/m/layer1/weight after .*write_back"):
        verify(graph)
    copies = {late.output: fetch.output, arrival.output: fetch.output}
    placements = {new: plan.placements[old] for new, old in copies.items()}
    # The fetched bytes are free by then, but the lifetime of their buffer has ended.
    longer = [
        replace(b, lifetime=replace(b.lifetime, last=len(graph.nodes) + 1)) for b in plan.buffers
    ]
    with pytest.raises(PlanError, match=r"@adam/m/layer1/weight is overwritten by .* before step"):
        check_plan(
            replace(
                plan, graph=graph, placements={**plan.placements, **placements},
                buffers=tuple(longer),
            )
        )  # fmt: skip


def test_bytes_of_a_copy_are_kept_until_the_write_back_ends():
    plan = plan_of()
    begin, end = ends(plan)
    buffer = plan.buffers[plan.placements[begin.inputs[0]].buffer]
    ended = replace(buffer.lifetime, last=plan.graph.position[end])
    buffers = [replace(b, lifetime=ended) if b is buffer else b for b in plan.buffers]
    with pytest.raises(PlanError, match="outside its recorded lifetime"):
        check_plan(replace(plan, buffers=tuple(buffers)))


def test_a_state_on_the_host_is_not_in_the_arena():
    plan = plan_of()
    state = next(s for s in plan.graph.states if s.name == STATE)
    index = plan.placements[state].buffer
    buffers = [replace(b, kind="state") if b.index == index else b for b in plan.buffers]
    with pytest.raises(PlanError):
        check_plan(replace(plan, buffers=tuple(buffers)))


def test_functions_refuse_values_that_they_cannot_copy():
    x = g.input("x", (4,))
    on_device = g.parameter("w", (4,))
    host = State(x.type, name="m", role="moment", memory="host")
    with pytest.raises(GraphError, match="write_back needs a state on the host"):
        begin_write_back(x, on_device)
    with pytest.raises(ShapeError, match="the new content of a state must be"):
        begin_write_back(g.input("y", (5,)), host)
    with pytest.raises(GraphError, match="finish_write_back needs"):
        finish_write_back(begin_copy_to_host(x))
    with pytest.raises(GraphError, match="finish_copy needs"):
        finish_copy(begin_write_back(x, host))
    assert fetched_state(finish_copy(begin_copy_to_device(host))) is host


def test_values_that_others_read_stay_on_the_device():
    x = g.input("x", (8, 8))
    plan = planned(g.mean(g.batch_norm(g.linear(x, 8))))
    assert {s.role for s in plan.graph.states if s.on_host} == {"moment"}
    assert {s.role for s in plan.graph.states if not s.on_host} >= {"parameter", "statistic"}


@pytest.mark.parametrize("device", ["a100", "cpu"])
def test_copies_overlap_with_other_nodes(device):
    loss = mlp(layers=6, hidden=512, batch=512)
    optimizer = g.optim.AdamW()
    plain = g.plan(loss, optimizer=optimizer, device=device)
    plan = g.plan(loss, optimizer=optimizer, device=device, host_states="moments")
    apart = g.plan(loss, optimizer=optimizer, device=device, host_states="moments", reorder=False)
    assert plan.arena_bytes < plain.arena_bytes - plan.host_state_bytes * (0.9 - GROWTH)
    costs, link = CostModel.of(plan), host_link(plan.device)
    found = model_copies(plan)
    assert found.seconds == pytest.approx(modeled_seconds(plan.graph.nodes, costs, link))
    assert found.out_bytes == found.in_bytes
    alone = model_copies(apart).stall_seconds
    assert found.stall_seconds < 0.75 * alone


def test_an_arena_without_a_goal_grows_by_a_small_part(monkeypatch):
    loss = mlp(layers=6, hidden=512, batch=512)
    options = {"optimizer": g.optim.Adam(), "host_states": "moments", "device": "a100"}
    plan = g.plan(loss, **options)
    with monkeypatch.context() as patch:
        patch.setattr("graphc.compiler.pipeline.overlap_state_copies", lambda given, *_: given)
        tight = g.plan(loss, **options)
    assert plan.arena_bytes <= tight.arena_bytes + GROWTH * plan.host_state_bytes


SLOW_LINK = MeasuredCosts({"name": "cpu"}, (), HostLink(1e9, 1e9, 1e-6))
"""Costs with a link that copies of the moments keep busy most of the step."""


@functools.cache
def within(network, part):
    """Return a budget and plans within it, one with copies of moments alone, one of others too.

    The budget is this part of the way from the least arena to that of a plan without a budget.
    """
    options = {"optimizer": g.optim.Adam(), "host_states": "moments", "costs": SLOW_LINK}
    plain = g.plan(network, **options)
    least = g.plan(network, **options, budget=plain.arena_bytes).bound_bytes
    options["budget"] = budget = least + int(part * (plain.arena_bytes - least))
    return budget, g.plan(network, **options), g.plan(network, **options, host_budget="1GiB")


LAYERS = mlp(layers=4, hidden=160, inputs=64, batch=256)
ATTENTION = gpt2(layers=2, width=128, heads=2, seq_len=64, batch=2, vocab=64)


@pytest.mark.parametrize(
    ("network", "part", "copied"),
    [
        (LAYERS, 0.25, True),
        (LAYERS, 0.5, False),
        pytest.param(ATTENTION, 0.45, True, marks=pytest.mark.slow),
        pytest.param(ATTENTION, 0.75, False, marks=pytest.mark.slow),
    ],
)
def test_copies_of_values_beside_those_of_states_save_time_or_are_left_out(network, part, copied):
    budget, alone, both = within(network, part)
    seconds = [
        model_copies(plan, CostModel.of(plan, measured=SLOW_LINK)).seconds for plan in (alone, both)
    ]
    assert (both.host_bytes > both.host_state_bytes) == copied
    assert seconds[1] < seconds[0] if copied else seconds[1] == seconds[0]
    assert both.arena_bytes <= budget


def test_states_on_the_host_come_first_there():
    plan = within(LAYERS, 0.25)[2]
    states = [
        b for b in plan.buffers if b.kind == "host" and b.lifetime.last > len(plan.graph.nodes)
    ]
    offsets = [buffer.offset for buffer in states]
    assert min(offsets) == plan.host_start
    assert sum(-(-b.bytes // 256) * 256 for b in states) == plan.host_state_bytes
    others = [b.offset for b in plan.buffers if b.kind == "host" and b not in states]
    assert others
    assert all(offset >= plan.host_start + plan.host_state_bytes for offset in others)
