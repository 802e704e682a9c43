"""The columns of a page against the plan, worked out again one value at a time."""

import json

import pytest
from view.networks import EACH_SMALL_PLAN, SMALL_PLANS, planned, small_plan
from view.replay import live_of_kind, replayed

from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import RARE
from graphc.plans.timeline import timeline
from graphc.view.page_model import HOWS, KINDS, PHASES, kinds_of, live_by_kind, page_model


@pytest.fixture(params=EACH_SMALL_PLAN)
def both(request):
    """A plan, and what came through the JSON of its page."""
    plan = small_plan(request.param)
    return plan, json.loads(json.dumps(page_model(plan, "tab")))


def test_sizes_are_those_of_the_plan(both):
    plan, model = both
    assert model["label"] == "tab"
    assert model["arena_bytes"] == plan.arena_bytes
    assert model["live"] == list(plan.live_profile)
    assert max(model["live"]) == model["live_bytes"] == plan.live_bytes
    assert model["live"][model["peak_step"]] == plan.live_bytes
    assert len(model["nodes"]["op"]) == len(plan.graph.nodes)


def test_the_rectangles_add_up_to_the_live_bytes(both):
    plan, model = both
    columns = model["buffers"]
    rectangles = list(zip(*(columns[name] for name in ("first", "last", "bytes")), strict=True))
    unit = model["alignment"]
    for step, live in enumerate(plan.live_profile):
        assert live == sum(-(-size // unit) * unit for a, b, size in rectangles if a <= step < b)


def test_rectangles_do_not_overlap_and_lie_in_the_arena(both):
    plan, model = both
    names = ("first", "last", "offset", "bytes")
    rows = list(zip(*(model["buffers"][name] for name in names), strict=True))
    for i, (first, last, offset, size) in enumerate(rows):
        assert 0 <= first < last <= len(plan.graph.nodes)
        assert offset >= 0
        assert offset + size <= plan.arena_bytes
        for other_first, other_last, other_offset, other_size in rows[:i]:
            in_time = first < other_last and other_first < last
            in_place = offset < other_offset + other_size and other_offset < offset + size
            assert not (in_time and in_place and size and other_size)


def test_every_value_has_its_place_type_producer_and_readers(both):
    plan, model = both
    graph, columns = plan.graph, model["values"]
    assert columns["name"] == [graph.names[value] for value in graph.values]
    starts = [sum(columns["reader_counts"][:i]) for i in range(len(graph.values))]
    number = {value: index for index, value in enumerate(graph.values)}
    for index, value in enumerate(graph.values):
        text, shape, dtype, size = columns["types"][columns["type"][index]]
        assert (text, tuple(shape), dtype, size) == (
            str(value.type), value.shape, value.type.dtype.name, value.type.bytes
        )  # fmt: skip
        address = model["buffers"]["offset"][columns["buffer"][index]] + columns["offset"][index]
        assert address == plan.address(value)
        strides = columns["strides"].get(str(index))
        assert strides == (list(plan.strided[value]) if value in plan.strided else None)
        place = plan.placements[value]
        assert HOWS[columns["how"][index]] == place.how
        assert columns["over"][index] == (-1 if place.over is None else number[place.over])
        readers = columns["readers"][starts[index] :][: columns["reader_counts"][index]]
        assert readers == [s for s, node in enumerate(graph.nodes) if value in node.inputs]
        step = columns["node"][index]
        assert (graph.nodes[step] if step >= 0 else None) is value.node


def test_nodes_say_scope_op_phase_and_seconds(both):
    plan, model = both
    columns, texts = model["nodes"], model["texts"]
    assert len(texts) == len(set(texts))
    for step, node in enumerate(plan.graph.nodes):
        scope, op = texts[columns["scope"][step]], texts[columns["op"][step]]
        assert node.label == (f"{scope}/{op}" if scope else op)
        assert PHASES[columns["phase"][step]] == node.phase
        wanted = CostModel(plan.device).seconds(node)
        assert columns["seconds"][step] == pytest.approx(wanted, rel=1e-3)
    assert model["clock"] == "roofline of cpu"
    assert model["device"] == "cpu"


def test_exchanges_are_those_of_the_modelled_step():
    plan = planned("mlp", ranks=2)
    found, columns = timeline(plan), page_model(plan, "tab")["exchanges"]
    assert found.exchanges
    names = ("node", "begin", "seconds", "sent_bytes")
    rows = list(zip(*(columns[name] for name in names), strict=True))
    for (step, begin, length, sent), exchange in zip(rows, found.exchanges, strict=True):
        assert step == exchange[0]
        assert (begin, length) == pytest.approx(exchange[1:], rel=1e-3)
        value = plan.graph.nodes[step].inputs[0]
        assert sent == value.type.bytes  # of two ranks, each sends half of it twice


def test_outputs_name_their_values(both):
    plan, model = both
    names = {name: plan.graph.names[value] for name, value in plan.graph.outputs.items()}
    assert model["outputs"] == names != {}


def test_kinds_of_buffers(both):
    plan, model = both
    columns, held = model["buffers"], replayed(plan)
    for buffer in plan.buffers:
        turns = dict(columns["turns"].get(str(buffer.index), ()))
        kind = columns["kind"][buffer.index]
        for step in range(buffer.lifetime.first, plan.lifetime_end(buffer)):
            kind = turns.pop(step, kind)
            assert KINDS[kind] == held[step, buffer.index][1]
        assert not turns


def test_copies_name_what_they_copy():
    plan = planned("mlp", recompute="cheap")
    model = page_model(plan, "")
    copies = [i for i, original in enumerate(model["values"]["copy_of"]) if original >= 0]
    assert copies
    for index in copies:
        name = model["values"]["name"][index]
        assert name.rsplit(".m", 1)[0] == model["values"]["name"][model["values"]["copy_of"][index]]


def test_live_bytes_of_each_kind_add_up(both):
    plan, _ = both
    found, held = live_by_kind(plan), replayed(plan)
    assert [sum(sizes.values()) for sizes in found] == list(plan.live_profile)
    for step in (0, plan.peak_step, len(plan.live_profile) - 1):
        for kind in kinds_of(plan):
            assert found[step][kind] == live_of_kind(plan, kind, step, held)


def test_a_plan_with_slots_has_one_kind_more():
    plan = planned("mlp", device="h200", overlap_copies=True)
    assert set(kinds_of(small_plan("mlp, none"), plan)) == set(KINDS) - set(RARE) | {"slot"}
    model, held = page_model(plan, ""), replayed(plan)
    names = {slot.buffer.index: plan.graph.names[slot.value] for slot in plan.slots}
    assert model["buffers"]["slots"] == names
    for step, sizes in enumerate(live_by_kind(plan)):
        assert sizes["slot"] == live_of_kind(plan, "slot", step, held) > 0


def test_all_kinds_and_ways_are_in_these_plans():
    """Else the tests above would say less than they seem to."""
    plans = [small_plan(name) for name in SMALL_PLANS]
    assert {b.kind for plan in plans for b in plan.buffers} == set(kinds_of(*plans))
    assert set(kinds_of(*plans)) == set(KINDS) - set(RARE)
    hows = {place.how for plan in plans for place in plan.placements.values()}
    assert hows >= {"new", "reuse", "over", "view", "state"}
