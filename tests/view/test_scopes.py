"""Bytes by scope: each live buffer counted once, in the scope of what it holds."""

import re

import pytest
from view.networks import EACH_SMALL_PLAN, EACH_UNEVEN_PLAN, planned, small_plan, uneven_plan
from view.replay import replayed

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.ir.graph import State
from graphc.ir.types import align
from graphc.view.scopes import explain_scopes, scopes_at


def scope_of(plan, name):
    """The scope of what a name of a replay stands for; slots have none."""
    if name.startswith("slot of "):
        return ""
    if not name.startswith(("%", "@")):
        label = name.removeprefix("workspace of ")
        return next(node.scope for node in plan.graph.nodes if node.label == label)
    value = next(v for v, each in plan.graph.names.items() if each == name.split()[0])
    if isinstance(value, State):
        over = {p.over: v for v, p in plan.placements.items() if p.how == "state"}
        writer = over.get(value)
        return writer.node.scope if writer is not None else value.name.rpartition("/")[0]
    return value.node.scope if value.node else ""


def wanted(plan, step):
    """Scope with all that is before it → its bytes, with those of all within it."""
    held, found = replayed(plan), {}
    for buffer in plan.live_at(step):
        parts = [part for part in scope_of(plan, held[step, buffer.index][0]).split("/") if part]
        for depth in range(len(parts) + 1):
            path = tuple(parts[:depth])
            found[path] = found.get(path, 0) + align(buffer.bytes, plan.alignment)
    return found


def paths(scope, before=()):
    """Each scope of a tree by its path."""
    yield before, scope
    for inner in scope.inner:
        yield from paths(inner, (*before, inner.name))


def check_scopes(plan, step):
    root = scopes_at(plan, step)
    assert root.bytes == plan.live_profile[step]
    found = dict(paths(root))
    assert {path: scope.bytes for path, scope in found.items()} == wanted(plan, step)
    for scope in found.values():
        assert scope.bytes == scope.own_bytes + sum(inner.bytes for inner in scope.inner)
        sizes = [inner.bytes for inner in scope.inner]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_scopes_add_up_to_what_is_live(name):
    plan = small_plan(name)
    for step in (0, plan.peak_step, len(plan.graph.nodes) - 1):
        check_scopes(plan, step)


@pytest.mark.parametrize("name", EACH_UNEVEN_PLAN)
def test_scopes_add_up_where_values_share_bytes(name):
    plan = uneven_plan(name)
    check_scopes(plan, plan.peak_step)


def test_moments_are_of_the_layer_that_they_train():
    x = g.input("x", (4, 32))
    with g.scope("large"):
        h = g.linear(x, 64)
    plan = g.plan(g.mean(h * h), optimizer=g.optim.Adam(1e-3))
    (large,) = [scope for scope in scopes_at(plan, 0).inner if scope.name == "large"]
    weight, bias = 32 * 64 * 4, 64 * 4
    assert large.own_bytes >= 3 * (weight + bias)
    assert "adam" not in {scope.name for scope in scopes_at(plan, 0).inner}


@pytest.mark.parametrize("name", ["resnet", "gpt2", "densenet"])
def test_sentences_on_scopes_are_true_and_those_of_the_first_level_add_up(name):
    plan = planned(name)
    first, *lines = explain_scopes(plan)
    assert f"{format_bytes(plan.live_bytes)} live at the peak, node {plan.peak_step} (" in first
    sizes, parts, level = wanted(plan, plan.peak_step), 0, ()
    for line in lines:
        indent, told, share, what = re.fullmatch(r"( +)(\S+ \w+) \((\d+)%\)  (.*)", line).groups()
        if len(indent) == 2:
            parts += int(share)
        if what == "of no scope" or what.startswith("in "):
            continue
        level = (*level[: len(indent) // 2 - 1], what)
        assert told == format_bytes(sizes[level])
        assert int(share) == round(100 * sizes[level] / plan.live_bytes)
    assert abs(parts - 100) <= len(lines)
    assert len(lines) > 3
