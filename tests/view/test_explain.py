"""Sentences about a value hold what the plan says: readers, copies, bytes."""

import re

import pytest
from view.networks import EACH_SMALL_PLAN, EACH_UNEVEN_PLAN, planned, small_plan, uneven_plan

import graphc as g
from graphc.ir.graph import State
from graphc.view.explain import explain_value
from graphc.view.matching import find_value


def sharing_bytes(plan, value):
    """The value, its views and what it was put together into, by operands and addresses alone."""
    found, graph = {value}, plan.graph
    for node in graph.nodes[0 if value.node is None else graph.position[value.node] :]:
        if found.isdisjoint(node.inputs):
            continue
        for output in node.outputs:
            place = plan.placements[output]
            for operand in found & set(node.inputs):
                is_view = place.how == "view" and address_in(plan, output, operand)
                is_whole = node.op.name == "concat" and address_in(plan, operand, output)
                if is_view or is_whole:
                    found.add(output)
    return found


def address_in(plan, inner, outer):
    first, second = plan.address(inner), plan.address(outer)
    same = plan.placements[inner].buffer == plan.placements[outer].buffer
    return same and second <= first < second + max(1, span(plan, outer))


def span(plan, value):
    strides = plan.placements[value].strides
    if strides is None:
        return value.type.bytes
    return sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True)) + 1


def check_explanation(plan, value):
    graph, text = plan.graph, "\n".join(explain_value(plan, value))
    assert text.startswith(f"{graph.names[value]} is {value.type}, ")
    assert f"begin at {plan.address(value):#x} of the arena" in text
    own = [step for step, node in enumerate(graph.nodes) if value in node.inputs]
    for step in own[:5] + own[-1:]:
        assert f"node {step} ({graph.nodes[step].label})" in text
    buffer = plan.buffers[plan.placements[value].buffer]
    end = min(buffer.lifetime.last, len(graph.nodes)) - 1
    assert f"is live from node {buffer.lifetime.first} to node {end}." in text
    is_state = isinstance(value, State) or (value.node is not None and value.node.op.has_effect)
    if is_state:
        return
    shared = sharing_bytes(plan, value)
    readers = [s for s, node in enumerate(graph.nodes) if not shared.isdisjoint(node.inputs)]
    behind = [s for s in readers if graph.nodes[s].phase in ("gradient", "mirror")]
    is_forward = value.node is None or value.node.phase == "forward"
    is_output = not shared.isdisjoint(graph.outputs.values())
    assert ("is the output" in text) == is_output
    assert ("saved for the backward pass" in text) == bool(is_forward and behind)
    if is_forward and behind:
        assert f"; the first is node {behind[0]} (" in text
    if not is_output:
        assert (
            f"It is live until its last use by node {readers[-1] if readers else ''}" in text
        ) == bool(readers)
        assert ("No node reads it" in text) == (not readers)


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_every_value_can_be_explained(name):
    plan = small_plan(name)
    for value in plan.graph.values:
        check_explanation(plan, value)


@pytest.mark.parametrize("name", EACH_UNEVEN_PLAN)
def test_values_that_share_bytes(name):
    plan = uneven_plan(name)
    for value in plan.graph.values[:: 1 + len(plan.graph.values) // 75]:
        check_explanation(plan, value)


@pytest.mark.parametrize("name", ["densenet, recursive", "lstm, recursive", "unet"])
def test_recomputed_values_are_dead_in_between(name):
    plan = uneven_plan(name)
    graph = plan.graph
    seen = 0
    copies = [v for v in graph.values if v.node is not None and v.node.copy_of in graph.position]
    for copy in copies[:: 1 + len(copies) // 25]:
        text = "\n".join(explain_value(plan, copy))
        original = copy.node.copy_of.outputs[copy.index]
        shared = {
            alias
            for node in graph.nodes if original.node in (node, node.copy_of)
            for alias in sharing_bytes(plan, node.outputs[copy.index])
        }  # fmt: skip
        touching = [
            step for step, node in enumerate(graph.nodes)
            if not shared.isdisjoint(node.inputs) or not shared.isdisjoint(node.outputs)
        ]  # fmt: skip
        told = re.search(r"need not be kept.* from node (\d+) to node (\d+) \(", text)
        own = sharing_bytes(plan, copy)
        is_read = any(not own.isdisjoint(node.inputs) for node in graph.nodes)
        if told:
            begin, end = map(int, told.groups())
            assert end == graph.position[copy.node]
            assert is_read
            assert [step for step in touching if begin <= step <= end] == [begin, end]
            seen += 1
        elif "that no node reads" in text:
            assert not is_read
        else:
            last = int(re.search(r"node (\d+) still reads", text).group(1))
            assert last in touching
            assert last >= graph.position[copy.node]
    assert seen > 3


def test_a_recomputed_value_and_its_copy():
    plan = planned(recompute="sublinear")
    copy = next(
        v for v in plan.graph.values
        if v.node and v.node.phase == "mirror"
        and plan.graph.uses[v.node.copy_of.outputs[v.index]][-1] < plan.graph.position[v.node]
    )  # fmt: skip
    original = copy.node.copy_of.outputs[copy.index]
    names, position = plan.graph.names, plan.graph.position
    text = "\n".join(explain_value(plan, original))
    assert f"recomputed once, first by node {position[copy.node]}" in text
    assert "saved for the backward pass" not in text
    text = "\n".join(explain_value(plan, copy))
    last = plan.graph.uses[original][-1]
    assert f"It is a copy of {names[original]}" in text
    assert f"from node {last} to node {position[copy.node]} (recompute=sublinear)" in text


def test_a_kept_value():
    x = g.input("x", (4, 3))
    with g.scope("layer"):
        h = g.relu(g.linear(x, 5))
    g.keep(h)
    plan = g.plan(g.mean(h), optimizer=g.optim.SGD())
    text = "\n".join(explain_value(plan, find_value(plan, "layer/relu")))
    assert "It is never evicted" in text
    assert "as its operand y." in text


@pytest.mark.parametrize("policy", ["cheap", "recursive"])
def test_a_copy_of_what_is_an_output(policy):
    """It is held to the end, so nothing is saved, and nothing else is claimed."""
    h, outputs = g.input("x", (64, 8)), []
    for layer in range(4):
        with g.scope(f"l{layer}"):
            h = g.relu(g.linear(h, 256))
        outputs.append(h)
    plan = g.plan(g.mean(h * h), outputs=[outputs[1]], optimizer=g.optim.SGD(0.1), recompute=policy)
    copies = [
        v for v in plan.graph.values
        if v.node and v.node.copy_of and v.node.label == "l1/relu"
    ]  # fmt: skip
    assert copies
    for copy in copies:
        original = copy.node.copy_of.outputs[copy.index]
        for value in (copy, original):
            text = "\n".join(explain_value(plan, value))
            assert "also kept" in text
            assert "not kept" not in text
            assert "need not" not in text
