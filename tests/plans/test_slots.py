"""Slots for copies that overlap with steps: their bytes, and what a plan may not do with them."""

import json
from dataclasses import replace

import pytest
from plans.changed_files import sealed

import graphc as g
from graphc.errors import BudgetError, OptionError, PlanError, PlanFileError
from graphc.models import mlp
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import ALLOCATE
from graphc.plans.plan_file import checked_plan


def planned(**options):
    given = {"optimizer": g.optim.Adam(), "device": "cuda", "overlap_copies": True, **options}
    return g.plan(mlp(layers=3, hidden=16, inputs=7, classes=3, batch=5), **given)


def inference(**options):
    """Two outputs, one of them twice and broadcast."""
    x = g.input("x", (2, 3))
    y = g.broadcast_to(g.reshape(g.tanh(x), (2, 3, 1)), (2, 3, 100))
    return g.plan(outputs={"a": y, "b": y, "c": g.relu(x)}, device="cuda", **options)


def rounded(*sizes):
    return sum(-(-size // 256) * 256 for size in sizes)


@pytest.mark.parametrize("allocate", ALLOCATE)
@pytest.mark.parametrize("recompute", ["none", "sublinear"])
def test_the_arena_grows_by_the_inputs(allocate, recompute):
    """5 x 7, 5 and 1 numbers of 4 bytes: all else lies as without slots, that much higher."""
    given = {"allocate": allocate, "recompute": recompute}
    with_slots, plain = planned(**given), planned(**given, overlap_copies=False)
    grown = rounded(5 * 7 * 4, 5 * 4, 4)
    assert with_slots.arena_bytes == plain.arena_bytes + grown
    assert with_slots.bytes_by_kind == {**plain.bytes_by_kind, "slot": grown}
    assert with_slots.live_bytes == plain.live_bytes + grown
    assert with_slots.feature_map_bytes == plain.feature_map_bytes
    assert with_slots.settings == {**plain.settings, "overlap_copies": True}
    for old, new in zip(plain.buffers, with_slots.buffers, strict=False):
        assert new == replace(old, offset=old.offset + (old.kind != "state") * grown)


def test_feeds_and_outputs_have_slots():
    """Outputs have one where no state changes: else they are taken before the next step begins."""
    named = [(plan.graph.names[s.value], s.way) for plan in [planned()] for s in plan.slots]
    assert named == [("%x", "in"), ("%labels", "in"), ("%learning_rate", "in")]
    plan = inference(overlap_copies=True)
    shapes = [(slot.value.shape, slot.way, slot.buffer.bytes) for slot in plan.slots]
    # What is broadcast takes the bytes that it lies in.
    assert shapes == [((2, 3), "in", 24), ((2, 3, 100), "out", 24), ((2, 3), "out", 24)]


def test_a_budget_has_room_for_slots():
    """Within what a plan without them needs, something has to be computed again."""
    loss = mlp(layers=5, hidden=64, inputs=64, batch=2048)
    given = {"optimizer": g.optim.SGD(), "device": "cuda"}
    plain = g.plan(loss, **given)
    found = g.plan(loss, **given, budget=plain.arena_bytes, overlap_copies=True)
    assert found.arena_bytes <= plain.arena_bytes
    assert found.recomputation.nodes > 0
    assert found.bytes_by_kind["slot"] == rounded(2048 * 64 * 4, 2048 * 4, 4)
    with pytest.raises(BudgetError) as error:
        g.plan(loss, **given, budget=1, overlap_copies=True)
    with pytest.raises(BudgetError) as without:
        g.plan(loss, **given, budget=1)
    grown = found.bytes_by_kind["slot"]
    assert error.value.bound_bytes == without.value.bound_bytes + grown
    assert g.plan(loss, **given, budget=error.value.least_bytes, overlap_copies=True)


def test_a_cpu_has_none():
    with pytest.raises(OptionError, match="overlap_copies requires a GPU"):
        planned(device="cpu")
    with pytest.raises(OptionError, match="True or False"):
        planned(overlap_copies=2)


def with_slot(plan, number, **changes):
    """The plan with another buffer for one slot."""
    slots, buffers = list(plan.slots), list(plan.buffers)
    old = slots[number]
    slots[number] = replace(old, buffer=replace(old.buffer, **changes))
    buffers[old.buffer.index] = slots[number].buffer
    return replace(plan, slots=tuple(slots), buffers=tuple(buffers))


def test_a_slot_on_anything_else_is_found():
    plan = planned()
    for buffer in plan.buffers:
        if buffer is plan.slots[0].buffer:
            continue
        with pytest.raises(PlanError, match=r"slot of %\w+ overlaps") as error:
            check_plan(with_slot(plan, 0, offset=buffer.offset))
        assert error.value.culprits[0] == "%x"


def test_a_slot_that_is_too_small_is_found():
    with pytest.raises(PlanError, match=r"slot of %x has 136 bytes, but the value needs 140"):
        check_plan(with_slot(planned(), 0, bytes=136))


CHANGES = {
    "no slots": lambda c: c.pop("slots"),
    "one slot": lambda c: c["slots"].pop(),
    "twice": lambda c: c["slots"].append(c["slots"][0]),
    "another way": lambda c: c["slots"][0].update(way="out"),
    "another value": lambda c: c["slots"][0].update(value="@layer0/bias"),
    "swapped": lambda c: c["slots"].reverse(),
    "another buffer": lambda c: c["slots"][0].update(buffer=0),
    "more bytes": lambda c: c["buffers"][c["slots"][0]["buffer"]].update(bytes=144),
    "a shorter life": lambda c: c["buffers"][c["slots"][0]["buffer"]].update(lifetime=[0, 2]),
    "another kind": lambda c: c["buffers"][c["slots"][0]["buffer"]].update(kind="input"),
    "a value": lambda c: c["placements"]["%0"].update(buffer=c["slots"][0]["buffer"]),
    "no way": lambda c: c["slots"][0].pop("way"),
    "a strange way": lambda c: c["slots"][0].update(way="up"),
    "a strange value": lambda c: c["slots"][0].update(value="%nothing"),
    "no list": lambda c: c.update(slots={}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_with_other_slots_are_refused(change):
    content = json.loads(planned().to_json())
    CHANGES[change](content)
    with pytest.raises((PlanError, PlanFileError)):
        checked_plan(sealed(content))


def test_files_of_plans_without_slots_are_as_before():
    assert '"slots"' not in planned(overlap_copies=False).to_json()
    assert len(checked_plan(planned().to_json()).slots) == 3


def test_pictures_name_slots():
    plan = inference(overlap_copies=True)
    assert "slot of %x" in plan.text()
    assert "</span> slot" in plan._repr_html_()
    assert "</span> slot" not in inference()._repr_html_()
