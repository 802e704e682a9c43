"""The checker's verdict is that of a replay byte by byte, wherever the buffers of a step lie."""

from dataclasses import replace
from itertools import combinations, product

import pytest
from plans.bytes_of_a_step import is_sound, moved

import graphc as g
from graphc.errors import PlanError
from graphc.ir.types import contiguous_strides
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import Lifetime

GRID = 8
"""Every buffer may start at each multiple; a row of two numbers, and so a piece, has as many."""


def parts_in_place():
    """Two halves whose rows alternate in their concatenation, and a value across both."""
    x = g.input("x", (2, 2))
    a, b, c = g.tanh(x), g.sigmoid(x), g.exp(x)
    return {"y": g.concat([a, b], 1) * 2.0, "c": c + a}, None


def a_part_and_a_copy():
    """The input is copied behind a part that lies in its place."""
    x = g.input("x", (2, 2))
    a = g.tanh(x)
    return {"y": g.concat([a, x], 1) * 2.0, "z": g.softmax(x) + a}, None


def rows_of_an_update():
    x, w = g.input("x", (1, 2)), g.parameter("w", (2, 2))
    h = g.tanh(g.matmul(x, w))
    return {"loss": g.mean(h * h)}, g.optim.SGD(0.1)


def moments():
    x, w = g.input("x", (2, 2)), g.parameter("w", (2, 2))
    return {"loss": g.mean(g.tanh(g.tanh(x * w)))}, g.optim.Momentum(0.1)


def views_in_one_piece():
    x = g.input("x", (4, 2))
    top, bottom = g.split(g.tanh(x), 2)
    return {"y": g.softmax(top), "z": g.reshape(bottom, (4,)) * g.reshape(top, (4,))}, None


def views_with_gaps():
    x = g.input("x", (2, 4))
    left, right = g.split(g.tanh(x), 2, axis=1)
    turned = g.softmax(g.transpose(left))
    return {"y": turned, "z": g.concat([right, g.exp(right)], 1) * x}, None


NETWORKS = [parts_in_place, a_part_and_a_copy, rows_of_an_update, moments, views_in_one_piece]


def planned(network):
    outputs, optimizer = network()
    loss = outputs.pop("loss") if optimizer else None
    found = g.plan(loss, outputs=outputs, optimizer=optimizer, alignment=16, kernels="numpy")
    return replace(found, alignment=GRID, arena_bytes=found.arena_bytes + GRID)


def places(plan, grid=GRID):
    return range(-grid, plan.arena_bytes + grid, grid)


def accepted(plan):
    try:
        check_plan(plan)
    except PlanError:
        return False
    return True


@pytest.mark.parametrize(
    ("network", "grid"),
    [
        (parts_in_place, GRID),
        (a_part_and_a_copy, GRID),
        (views_in_one_piece, GRID),
        (rows_of_an_update, 2 * GRID),
        pytest.param(rows_of_an_update, GRID, marks=pytest.mark.slow),
        pytest.param(moments, GRID, marks=pytest.mark.slow),
    ],
)
def test_verdicts_are_equal_wherever_any_two_buffers_lie(network, grid):
    plan = planned(network)
    seen = set()
    for one, other in combinations([buffer.index for buffer in plan.buffers], 2):
        for offsets in product(places(plan, grid), repeat=2):
            changed = moved(plan, dict(zip((one, other), offsets, strict=True)))
            verdict = accepted(changed)
            assert verdict == is_sound(changed), (one, other, offsets)
            seen.add(verdict)
    assert seen == {True, False}


def check_all_placements(network, grid):
    plan = planned(network)
    plan = replace(plan, arena_bytes=plan.arena_bytes - GRID, alignment=grid)
    ids = [buffer.index for buffer in plan.buffers]
    offsets = range(0, plan.arena_bytes, grid)
    count = 0
    for chosen in product(offsets, repeat=len(ids)):
        changed = moved(plan, dict(zip(ids, chosen, strict=True)))
        verdict = accepted(changed)
        assert verdict == is_sound(changed), chosen
        count += verdict
    assert 0 < count < len(offsets) ** len(ids)


@pytest.mark.parametrize("network", [parts_in_place, a_part_and_a_copy, views_in_one_piece])
def test_verdicts_are_equal_for_all_placements_on_a_coarse_grid(network):
    check_all_placements(network, 16)


@pytest.mark.slow
@pytest.mark.parametrize("network", [parts_in_place, a_part_and_a_copy])
def test_verdicts_are_equal_for_all_placements_on_a_fine_grid(network):
    check_all_placements(network, GRID)


def test_nothing_unsound_is_accepted_where_views_have_gaps():
    """A view may be held to stand for the bytes in its gaps too: more is refused, never less."""
    plan = planned(views_with_gaps)
    count = 0
    for one, other in combinations([buffer.index for buffer in plan.buffers], 2):
        for offsets in product(places(plan), repeat=2):
            changed = moved(plan, dict(zip((one, other), offsets, strict=True)))
            if accepted(changed):
                count += 1
                assert is_sound(changed), (one, other, offsets)
    assert count > 0


@pytest.mark.parametrize("network", [*NETWORKS, views_with_gaps])
def test_verdicts_are_equal_for_lifetimes_one_step_longer_or_shorter(network):
    plan = planned(network)
    seen = set()
    for buffer in plan.buffers:
        for first, last in product((-1, 0, 1), repeat=2):
            lifetime = Lifetime(buffer.lifetime.first + first, buffer.lifetime.last + last)
            buffers = list(plan.buffers)
            buffers[buffer.index] = replace(buffer, lifetime=lifetime)
            changed = replace(plan, buffers=tuple(buffers))
            assert accepted(changed) == is_sound(changed), (buffer, lifetime)
            seen.add(accepted(changed))
    assert seen == {True, False}


@pytest.mark.parametrize("network", [*NETWORKS, views_with_gaps])
def test_verdicts_are_equal_for_values_moved_inside_their_buffers(network):
    """By single bytes too, which no element may start at."""
    plan = planned(network)
    refused = 0
    for value, place in plan.placements.items():
        for shift in (-8, -4, -1, 1, 4, 8):
            there = replace(place, offset=place.offset + shift)
            changed = replace(plan, placements={**plan.placements, value: there})
            if accepted(changed):
                assert is_sound(changed), (plan.graph.names[value], shift)
            else:
                refused += 1
                assert not is_sound(changed), (plan.graph.names[value], shift)
    assert refused > 0


def axes_of_extent_1():
    """Computed, viewed, gathered in place and overwritten."""
    x = g.input("x", (2, 1, 2))
    a, b, c = g.tanh(x), g.sigmoid(x), g.exp(x)
    turned = g.transpose(g.reshape(c + a, (1, 4)))
    return {"y": g.concat([a, b], 2) * 2.0, "c": turned}, None


@pytest.mark.parametrize("stride", [0, 2, 4, 8, 1000])
def test_the_stride_of_an_axis_of_extent_1_decides_nothing(stride):
    plan = planned(axes_of_extent_1)
    count = 0
    for value, place in plan.placements.items():
        strides = list(place.strides or contiguous_strides(value.type))
        for axis in (axis for axis, extent in enumerate(value.shape) if extent == 1):
            changed = (*strides[:axis], stride, *strides[axis + 1 :])
            there = {**plan.placements, value: replace(place, strides=changed)}
            if value.node is not None:  # sources are never strided
                check_plan(replace(plan, placements=there))
                count += 1
    assert count == 8
    assert {place.how for place in plan.placements.values()} >= {"part", "view", "over"}
