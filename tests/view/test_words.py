"""Sentences about values, peaks and differences hold what the plan says."""

import re
from dataclasses import replace

import pytest
from view.networks import every_plan, planned

import graphc as g
from graphc.errors import OptionError
from graphc.ir.graph import Input, State
from graphc.ir.types import format_bytes
from graphc.view.difference import differences
from graphc.view.explain import explain_kept, explain_peak, explain_value, resident_at
from graphc.view.matching import find_value, pairs


@pytest.mark.parametrize("plan", every_plan(), ids=repr)
def test_every_value_can_be_explained(plan):
    graph = plan.graph
    for value in graph.values:
        text = "\n".join(explain_value(plan, value))
        assert text.startswith(f"{graph.names[value]} is {value.type}, ")
        assert f"begin at {plan.address(value):#x} of the arena" in text
        readers = [step for step, node in enumerate(graph.nodes) if value in node.inputs]
        for step in readers[:5] + readers[-1:]:
            assert f"node {step} ({graph.nodes[step].label})" in text
        is_gradient_read = any(graph.nodes[s].phase in ("gradient", "mirror") for s in readers)
        is_forward = not isinstance(value, State) and (
            value.node is None or value.node.phase == "forward"
        )
        is_output = value in graph.outputs.values()
        if not is_output:
            assert ("kept from the forward pass" in text) == (is_forward and is_gradient_read)
        assert ("is the output" in text) == is_output


def test_a_recomputed_value_and_its_copy():
    plan = planned("mlp", recompute="cheap")
    copy = next(v for v in plan.graph.values if v.node and v.node.phase == "mirror")
    original = copy.node.copy_of.output
    names, position = plan.graph.names, plan.graph.position
    text = "\n".join(explain_value(plan, original))
    assert f"computed again, once, first by node {position[copy.node]}" in text
    assert "kept from the forward pass" not in text
    text = "\n".join(explain_value(plan, copy))
    last = plan.graph.uses[original][-1]
    assert f"It is a copy of {names[original]}" in text
    assert f"from node {last} to node {position[copy.node]}: recomputation is cheap" in text


def test_a_kept_value():
    x = g.input("x", (4, 3))
    with g.scope("layer"):
        h = g.relu(g.linear(x, 5))
    g.keep(h)
    plan = g.plan(g.mean(h), optimizer=g.optim.SGD())
    text = "\n".join(explain_value(plan, find_value(plan, "layer/relu")))
    assert "It is never dropped" in text
    assert "as its operand y." in text


def test_values_are_found_by_name_and_by_place():
    plan = planned()
    names = plan.graph.names
    for value, name in names.items():
        assert find_value(plan, name) is value
        assert find_value(plan, name[1:]) is value
    found = find_value(plan, "stem/relu")
    assert found.node.label == "stem/relu"
    with pytest.raises(OptionError, match=r"fits \d+ values; choose one of: .* and \d+ more"):
        find_value(plan, "stage1")
    with pytest.raises(OptionError, match="no value '#'; none is called alike"):
        find_value(plan, "#")
    with pytest.raises(OptionError, match="no value 'stem/rulu'; close to it are stem/relu"):
        find_value(plan, "stem/rulu")


@pytest.mark.parametrize("plan", every_plan(), ids=repr)
def test_what_is_kept(plan):
    graph = plan.graph
    wanted = {}
    for step, node in enumerate(graph.nodes):
        if node.phase in ("gradient", "mirror"):
            for value in node.inputs:
                given = isinstance(value, Input)
                if given or (value.node is not None and value.node.phase == "forward"):
                    wanted.setdefault(plan.address(value), (value.type.bytes, []))[1].append(step)
    first, *lines = explain_kept(plan)
    total = format_bytes(sum(size for size, _ in wanted.values()))
    assert first.startswith(f"The forward pass keeps {len(wanted)} values, {total} together")
    sizes = sorted((format_bytes(size) for size, _ in wanted.values()), reverse=True)
    if len(wanted) <= 40:
        assert sorted((line.split(",")[0].strip() for line in lines), reverse=True) == sizes
    for line in lines[:40]:
        steps = [int(number) for number in re.findall(r"node (\d+)", line)]
        assert any(steps in ([s[0], s[-1]], s[:1]) for _, s in wanted.values())


@pytest.mark.parametrize("plan", every_plan(), ids=repr)
def test_the_peak(plan):
    text = "\n".join(explain_peak(plan))
    assert text.startswith(f"Most bytes are live at node {plan.peak_step} of ")
    assert format_bytes(plan.live_bytes) in text.splitlines()[0]
    for buffer in [b for b in plan.live_at(plan.peak_step) if b.kind != "state"][:5]:
        value = resident_at(plan, buffer.index, plan.peak_step)
        name = "workspace" if value is None else plan.graph.names[value]
        assert f"{format_bytes(buffer.bytes)}, " in text
        assert name in text


def test_residents_are_those_written_last():
    plan = planned()
    buffer = max(plan.residents, key=lambda index: len(plan.residents[index]))
    span = plan.buffers[buffer].lifetime
    seen = [resident_at(plan, buffer, step) for step in range(span.first, span.last)]
    written = [v for v in plan.residents[buffer] if plan.placements[v].how != "view"]
    assert list(dict.fromkeys(seen)) == written


def test_pairs_hold_every_value_once():
    before, after = planned().graph, planned(recompute="sublinear").graph
    found = list(pairs(before, after))
    assert {a for a, _ in found} - {None} == set(before.values)
    assert {b for _, b in found} - {None} == set(after.values)
    assert len([a for a, _ in found if a is not None]) == len(before.values)
    for a, b in found:
        if a is not None and b is not None and a.node is not None:
            assert (a.node.label, a.node.phase, a.type) == (b.node.label, b.node.phase, b.type)
        assert a is not None or b.node.phase == "mirror"
        assert b is not None


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
    assert f"node {before.peak_step} of {len(before.graph.nodes)}" in text
    assert f"node {after.peak_step} of {len(after.graph.nodes)}" in text
    told = "\n".join(differences(after, before))
    assert f"only in the first: {len(copies)} values" in told
    first = next(s for s in differences(before, after) if s.startswith("the arena"))
    change = after.arena_bytes / before.arena_bytes - 1
    assert re.search(r"[-+][\d.]+%", first).group() == f"{change:+.1%}"
