"""Hazards against a comparison of all pairs of nodes, byte by byte."""

import itertools

import numpy as np
import pytest
from runtime.emulated_gpu.networks import branches, small_gpt2, small_mlp

import graphc as g
from graphc.allocation.hazards import Addresses, hazards


def touched(plan, node):
    """Bytes that a node reads and writes, one by one."""

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

    reads = set(np.concatenate([elements(v) for v in node.inputs] or [[]]).astype(int))
    shown = [v for v in node.outputs if plan.placements[v].how != "view"]
    writes = set(np.concatenate([elements(v) for v in shown] or [[]]).astype(int))
    room = plan.workspaces.get(node)
    if room is not None and room.bytes < 10_000:
        writes |= set(range(room.offset, room.offset + room.bytes))
    return reads, writes


@pytest.mark.parametrize(
    "options", [{}, {"allocate": "sharing"}, {"recompute": "sublinear"}], ids=str
)
@pytest.mark.parametrize(
    "network", [small_mlp, branches, pytest.param(small_gpt2, marks=pytest.mark.slow)]
)
def test_hazards_order_all_that_touches_the_same_bytes(network, options):
    loss = network("float32")
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda", **options)
    places = Addresses.of(plan)
    found = hazards(places)
    before = []  # of each node, all that it comes after, by chains of hazards
    for needed in found:
        before.append(set(needed).union(*(before[other] for other in needed)))
    running = [(n, node) for n, node in enumerate(plan.graph.nodes) if places.runs(node)]
    bytes_of = [(number, *touched(plan, node)) for number, node in running]
    pairs = list(itertools.combinations(bytes_of, 2))
    ordered = [
        (i, j)
        for (i, reads, writes), (j, later, written) in pairs
        if writes & (later | written) or reads & written
    ]
    assert len(running) < len(ordered) < len(pairs)
    for i, j in ordered:
        assert i in before[j], f"{plan.graph.nodes[i]} and {plan.graph.nodes[j]}"
