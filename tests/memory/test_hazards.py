"""Hazards against a comparison of all pairs of nodes, byte by byte."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from runtime.emulated_gpu.networks import branches, small_gpt2, small_mlp

import graphc as g
from graphc.memory.hazards import Addresses, hazards
from graphc.memory.streams import on_streams
from graphc.plans.check.check_plan import check_plan
from graphc.plans.cost_model import CostModel


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


@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_parts_of_a_concatenation_run_side_by_side(device):
    """Four products into one buffer wait for nothing but what was there before."""
    x = g.input("x", (64, 64))
    parts = [g.matmul(x, g.parameter(f"w{i}", (64, 64))) for i in range(4)]
    plan = g.plan(outputs=[g.concat(parts, 0)], device=device)
    assert {plan.placements[part].how for part in parts} == {"part"}
    places = Addresses.of(plan)
    found = hazards(replace(places, workspaces={}))  # which products share
    products = [n for n, node in enumerate(plan.graph.nodes) if "matmul" in node.op.name]
    assert len(products) == 4
    assert all(not set(found[n]) & set(products) for n in products)
    wide = g.plan(outputs=plan.graph.outputs, device=device, streams=4, budget="1GiB")
    assert wide.streams.speedup > 2


def test_parts_wait_for_what_lay_there_before():
    """Each part is written over bytes that other values had, and waits for the last that read
    them."""
    x = g.input("x", (64, 64))
    h = x
    for i in range(3):
        h = g.tanh(g.matmul(h, g.parameter(f"v{i}", (64, 64))))
    small = g.sum(h, 1, keepdims=True)
    parts = [g.matmul(x * small, g.parameter(f"w{i}", (64, 64))) for i in range(3)]
    plan = g.plan(outputs=[g.sum(g.concat(parts, 0))], reorder=False)
    for streams in (2, 3):
        check_plan(on_streams(plan, CostModel(plan.device), streams))
