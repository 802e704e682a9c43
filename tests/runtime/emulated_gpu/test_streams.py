"""Hazards against a comparison of all pairs, and slots that keep them."""

import itertools

import numpy as np
import pytest
from runtime.emulated_gpu.networks import branches, small_gpt2, small_mlp

import graphc as g
from graphc.runtime.gpu.bind import bind
from graphc.runtime.gpu.streams import assign_streams, hazards

ADDRESS = 0x7F00_0000_0000


def touched(plan, work):
    """Bytes that a work reads and writes, one by one."""

    def elements(value):
        placement = plan.placements[value]
        size = value.type.dtype.itemsize
        strides = placement.strides
        if strides is None:
            first = plan.address(value)
            return np.arange(first, first + value.type.bytes)
        index = np.indices(value.shape).reshape(len(value.shape), -1)
        starts = plan.address(value) + np.array(strides) @ index
        return (starts[:, None] + np.arange(size)).reshape(-1)

    inputs = [v for node in work.nodes for v in node.inputs]
    reads = set(np.concatenate([elements(v) for v in inputs] or [[]]).astype(int))
    outputs = (v for node in work.nodes for v in node.outputs)
    shown = [v for v in outputs if plan.placements[v].how != "view"]
    writes = set(np.concatenate([elements(v) for v in shown]).astype(int))
    room = plan.workspaces.get(work.nodes[0])
    if room is not None and room.bytes < 10_000:
        writes |= set(range(room.offset, room.offset + room.bytes))
    return reads, writes


def plan_of(network, **options):
    return g.plan(network("float32"), optimizer=g.optim.SGD(0.1), device="cuda", **options)


@pytest.mark.parametrize("options", [{}, {"allocate": "sharing"}, {"recompute": "sublinear"}],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "network", [small_mlp, branches, pytest.param(small_gpt2, marks=pytest.mark.slow)]
)
def test_hazards_order_all_that_touches_the_same_bytes(network, options):
    plan = plan_of(network, **options)
    works = bind(plan, ADDRESS)
    found = hazards(plan, works)
    before = []  # of each work, all that it comes after, by chains of hazards
    for needed in found:
        before.append(set(needed).union(*(before[other] for other in needed)))
    bytes_of = [touched(plan, work) for work in works]
    pairs = list(itertools.combinations(enumerate(bytes_of), 2))
    ordered = [
        (i, j)
        for (i, (reads, writes)), (j, (later, written)) in pairs
        if writes & (later | written) or reads & written
    ]
    assert len(works) < len(ordered) < len(pairs)
    for i, j in ordered:
        assert i in before[j], f"{works[i].nodes} and {works[j].nodes}"


def test_branches_run_side_by_side():
    plan = plan_of(branches, allocate="none")
    works = bind(plan, ADDRESS)
    slots = assign_streams(plan, works, 3)
    assert {slot.stream for slot in slots} == {0, 1, 2}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_slots_keep_hazards(count):
    plan = plan_of(small_gpt2)
    works = bind(plan, ADDRESS)
    slots = assign_streams(plan, works, count)
    assert any(slot.waits for slot in slots) == (count > 1)
    before, last = [], {}
    for number, slot in enumerate(slots):
        own = set(slot.waits)
        if slot.stream in last:
            own.add(last[slot.stream])
        assert all(slots[other].stream != slot.stream for other in slot.waits)
        before.append(own.union(*(before[other] for other in own)))
        last[slot.stream] = number
    for number, needed in enumerate(hazards(plan, works)):
        assert set(needed) <= before[number]


def test_one_stream_waits_for_nothing():
    plan = plan_of(small_mlp)
    assert all(slot.waits == () for slot in assign_streams(plan, bind(plan, ADDRESS), 1))
