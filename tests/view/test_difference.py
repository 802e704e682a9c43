"""Sentences about two plans hold what they say: sizes, peaks, copies, places."""

import re
from dataclasses import replace

from view.networks import planned

import graphc as g
from graphc.ir.types import format_bytes
from graphc.view.difference import differences


def test_a_plan_does_not_differ_from_itself():
    plan = planned()
    told = differences(plan, plan)
    assert len(told) == 4
    assert all("both" in sentence for sentence in told)


def test_what_moved_is_what_has_another_address():
    plan = planned()
    state = max((b for b in plan.buffers if b.kind == "state"), key=lambda b: b.offset)
    values = [v for v, p in plan.placements.items() if p.buffer == state.index]
    buffers = list(plan.buffers)
    buffers[state.index] = replace(state, offset=state.offset + 256)
    moved = replace(plan, buffers=tuple(buffers))
    (sentence,) = [s for s in differences(plan, moved) if s.startswith("moved")]
    assert sentence.startswith(f"moved: {len(values)} of {len(plan.graph.values)} values")
    assert f"{state.offset:#x} → {state.offset + 256:#x}" in sentence


def test_what_is_computed_again_and_where_the_peak_went():
    before, after = planned(), planned(recompute="sublinear")
    text = "\n".join(differences(before, after))
    copies = [v for v in after.graph.values if v.node and v.node.phase == "mirror"]
    total = sum(value.type.bytes for value in copies)
    assert f"only in the second: {len(copies)} values of {format_bytes(total)}" in text
    for plan in (before, after):
        label = plan.graph.nodes[plan.peak_step].label
        assert f"node {plan.peak_step} ({label}) of {len(plan.graph.nodes)}" in text
    told = "\n".join(differences(after, before))
    assert f"only in the first: {len(copies)} values" in told
    first = next(s for s in differences(before, after) if s.startswith("the arena"))
    change = after.arena_bytes / before.arena_bytes - 1
    assert re.search(r"[-+][\d.]+%", first).group() == f"{change:+.1%}"


def test_plans_without_nodes_and_of_other_networks():
    x = g.input("x", (4,))
    empty, one = g.plan(outputs=[x]), g.plan(outputs=[g.relu(x)])
    assert any("start" in sentence for sentence in differences(empty, one))
    assert any("start" in sentence for sentence in differences(one, empty))
    first = differences(planned("mlp"), planned("lstm"))[0]
    assert first.startswith("these are plans of different networks")


def test_kinds_at_the_peak_and_last_reads():
    before, after = planned("mlp"), planned("mlp", recompute="cheap")
    told = differences(before, after)
    for kind in ("feature map", "gradient", "state", "input", "mirror", "workspace"):
        sizes = []
        for plan in (before, after):
            alive = [b.bytes for b in plan.live_at(plan.peak_step) if b.kind == kind]
            sizes.append(sum(-(-size // plan.alignment) * plan.alignment for size in alive))
        sentence = [line for line in told if line.startswith(f"{kind} bytes at the peak")]
        assert len(sentence) == (sizes[0] != sizes[1])
        if sentence and format_bytes(sizes[0]) != format_bytes(sizes[1]):
            assert f": {format_bytes(sizes[0])} → {format_bytes(sizes[1])}" in sentence[0]
    # What is computed again is last read in the forward pass, and was in the gradient's.
    (earlier,) = [line for line in told if "in an earlier part" in line]
    copies = {node.copy_of for node in after.graph.nodes if node.copy_of is not None}
    names = re.findall(r"(%\d+) \(", earlier)
    labels = {node.label for node in copies}
    originals = {
        name for value, name in before.graph.names.items()
        if value.node is not None and value.node.label in labels
    }  # fmt: skip
    assert names
    assert set(names) <= originals
    (later,) = [line for line in differences(after, before) if "in a later part" in line]
    assert sorted(re.findall(r"\(([\d.]+ \w+), last", later)) == sorted(
        re.findall(r"\(([\d.]+ \w+), last", earlier)
    )
