"""Copies to pinned memory, on streams that run in any order that their events allow."""

import random
from dataclasses import replace

import pytest
from plans.with_copies import copied, random_trips, randomly_copied
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.networks import (
    fed,
    on_gpu,
    plan_of,
    small_gpt2,
    small_resnet,
    stepped,
    trained,
)
from runtime.emulated_gpu.test_family import build, family_of, feeds

import graphc as g
from graphc.errors import PlanError
from graphc.plans.check.check_family import check_family
from graphc.plans.check.check_plan import check_plan
from graphc.plans.family import in_one_arena
from graphc.runtime.gpu.bind import BoundCopy
from graphc.runtime.gpu.step_model import model_step
from graphc.runtime.host_link import LARGE, gpu_link


@pytest.fixture(scope="module")
def plan():
    plain = plan_of()
    return copied(plain, random_trips(plain, random.Random(2), 12))


def test_the_link_is_measured_with_pinned_memory():
    device = EmulatedDevice()
    link = gpu_link(device)
    assert device.counts["pinned"] == 1
    assert device.allocations == [2 * LARGE]
    assert 1e7 < link.to_host < 1e13
    assert 1e7 < link.to_device < 1e13


SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("captures", [True, False])
def test_bits_are_those_without_copies(plan, seed, captures):
    losses, states, device = trained(plan, seed=seed, cuda_graph=captures)
    assert (losses, states) == trained(plan_of())[:2]
    count = sum(bool(node.op.copies_to) for node in plan.graph.nodes)
    assert device.counts["host copies"] == 3 * count > 60
    assert device.counts["captures"] == captures


@pytest.mark.parametrize("options", [{"poison": True}, {"check_finite": True}])
def test_checked_steps_have_the_same_bits(plan, options):
    assert trained(plan, steps=2, **options)[:2] == trained(plan_of(), steps=2)[:2]


@pytest.mark.parametrize(
    ("network", "strategy"),
    [
        (small_gpt2, "packed"),
        pytest.param(small_gpt2, "none", marks=pytest.mark.slow),
        pytest.param(small_resnet, "packed", marks=pytest.mark.slow),
        pytest.param(small_resnet, "none", marks=pytest.mark.slow),
    ],
)
def test_networks_have_the_same_bits(network, strategy):
    """Channels-last maps, turned heads, concatenations in place and recomputed values."""
    plain = plan_of(network, recompute="sublinear")
    found = randomly_copied(plain, random.Random(4), 20, strategy)
    check_plan(found)
    assert trained(found, steps=2)[:2] == trained(plain, steps=2)[:2]


def test_padded_rows_are_copied_with_their_gaps():
    """Rows of 11 numbers, which lie 16 apart."""
    plain = plan_of(small_gpt2, precision="bf16")
    found = randomly_copied(plain, random.Random(1), 30)
    padded = [n for n in found.graph.nodes if n.op.copies_to and n.output in found.strided]
    assert any(found.strided[n.output][-2] > 2 * n.output.shape[-1] for n in padded)
    assert trained(found, steps=2)[:2] == trained(plain, steps=2)[:2]


def test_each_direction_has_a_stream(plan):
    program, device = on_gpu(plan)
    backend = program.backend
    assert len(backend._streams) == 3
    slots = zip(backend.works, backend._slots, strict=True)
    streams = {(work.calls[0].copy.to, slot.stream) for work, slot in slots
               if any(isinstance(call, BoundCopy) for call in work.calls)}  # fmt: skip
    assert streams == {("host", 1), ("device", 2)}
    assert program.host_bytes == plan.host_bytes
    assert [len(a) for a in device.pinned_arrays].count(plan.host_bytes) == 1
    assert device.allocations == [plan.arena_bytes]
    assert program.report.calls["copies"] == sum(bool(n.op.copies_to) for n in plan.graph.nodes)
    assert "copies" not in on_gpu(plan_of())[0].report.calls


def test_a_copy_runs_beside_kernels(plan):
    """The order of copies and kernels differs from run to run."""
    orders = set()
    for seed in range(3):
        program, device = on_gpu(plan, seed)
        order, call = [], device.call
        device.call = lambda each, call=call, order=order: (order.append(id(each)), call(each))
        program.step(fed(plan))
        calls = [call for work in program.backend.works for call in work.calls]
        numbers = {id(call): number for number, call in enumerate(calls)}
        orders.add(tuple(numbers[each] for each in order))
    assert len(orders) == 3


@pytest.mark.parametrize("forgotten", ["start", "wait"])
def test_a_missing_wait_would_be_found(plan, forgotten, monkeypatch):
    """The emulated streams really run copies early and late."""
    expected = trained(plan_of(), steps=2)[:2]
    found = []
    for seed in range(4):
        program, _ = on_gpu(plan, seed, cuda_graph=False)
        backend = program.backend
        is_copy = [any(isinstance(c, BoundCopy) for c in w.calls) for w in backend.works]
        for number, slot in enumerate(backend._slots):
            if is_copy[number] == (forgotten == "start"):
                backend._slots[number] = type(slot)(slot.stream, ())
        found.append(stepped(program, 2) != expected)
    assert any(found)


def test_the_model_of_a_step_leaves_copies_out(plan):
    assert model_step(plan).seconds < 1.1 * model_step(plan_of()).seconds


def test_a_plan_that_needs_more_host_memory_is_not_bound(plan):
    with pytest.raises(PlanError, match="exceeds the host memory"):
        on_gpu(replace(plan, host_bytes=256))


def test_programs_in_one_arena_have_their_own_host_memory():
    plain = g.plan_family(build, {"rows": (4, 8)}, optimizer=g.optim.SGD(0.1), device="cuda")
    plans = [randomly_copied(each, random.Random(1), 6) for each in plain.plans]
    found, device = in_one_arena(plain.sizes, plans), EmulatedDevice(3)
    check_family(found.plans, found.arena_bytes)
    families = family_of(found, device), family_of(plain, EmulatedDevice(4))
    for step, rows in enumerate((8, 4, 8, 4, 4, 8)):
        losses = [family.step(feeds(rows, step))["loss"].tobytes() for family in families]
        assert losses[0] == losses[1]
    sizes = [len(array) for array in device.pinned_arrays]
    assert all(plan.host_bytes in sizes for plan in plans)
    assert device.counts["host copies"] > 0
