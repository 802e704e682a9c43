"""Sentences about what is kept and what makes the peak hold what the plan says."""

import re

import numpy as np
import pytest
from view.networks import EACH_SMALL_PLAN, EACH_UNEVEN_PLAN, planned, small_plan, uneven_plan
from view.replay import live_of_kind, replayed

from graphc.byte_sizes import format_bytes
from graphc.ir.graph import State
from graphc.plans.cost_model import CostModel
from graphc.plans.costs import MeasuredCosts, Measurement, node_key
from graphc.plans.names import held_at
from graphc.view.page_model import KINDS
from graphc.view.peak import explain_kept, explain_peak


def bytes_of(plan, value, size):
    """Which bytes of its buffer a value has."""
    found = np.zeros(size, bool)
    place = plan.placements[value]
    steps = place.strides or [0] * len(value.shape)
    if place.strides is None:
        found[place.offset : place.offset + value.type.bytes] = True
        return found
    starts = np.array([place.offset])
    for extent, stride in zip(value.shape, steps, strict=True):
        starts = (starts[:, None] + np.arange(extent) * stride).reshape(-1)
    width = value.type.dtype.itemsize
    for byte in range(width):
        found[starts + byte] = True
    return found


def kept_by(plan):
    """Of each buffer the bytes that the forward pass writes and later passes read, and by whom."""
    graph, kept = plan.graph, {}
    for value in graph.values:
        if isinstance(value, State) or (value.node is not None and value.node.phase != "forward"):
            continue
        nodes = [s for s in graph.uses[value] if graph.nodes[s].phase in ("gradient", "mirror")]
        buffer = plan.buffers[plan.placements[value].buffer]
        if nodes and buffer.kind != "state":
            union, steps = kept.setdefault(buffer.index, (np.zeros(buffer.bytes, bool), []))
            union |= bytes_of(plan, value, buffer.bytes)
            steps += nodes
    return kept


def most_at_once(plan, kept):
    """Step by step: what was written already, and is still to be read."""
    spans = []
    for index, (union, steps) in kept.items():
        born = min(
            -1 if value.node is None else plan.graph.position[value.node]
            for value in plan.residents[index]
            if not set(plan.graph.uses[value]).isdisjoint(steps)
        )
        spans.append((born, max(steps), int(union.sum())))
    return max(
        sum(size for born, last, size in spans if born <= step <= last)
        for step in range(len(plan.graph.nodes))
    )


def check_kept(plan):
    kept = kept_by(plan)
    first, *lines = explain_kept(plan)
    total = format_bytes(sum(int(union.sum()) for union, _ in kept.values()))
    most = format_bytes(most_at_once(plan, kept))
    if most == total:
        assert f", {total} in total, " in first
    else:
        assert f", {total}, at most {most} at a time, " in first
    everything = sorted(step for _, steps in kept.values() for step in steps)
    told = [[int(step) for step in re.findall(r"node (\d+)", line)] for line in lines[:40]]
    spans = [each for each in told if each]
    assert all(step in everything for each in spans for step in each)
    if len(lines) <= 40:
        assert int(re.search(r"saves (\d+) value", first).group(1)) == len(lines)
        assert min(each[0] for each in spans) == everything[0]
        assert max(each[-1] for each in spans) == everything[-1]


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_saved_values_are_listed(name):
    plan = small_plan(name)
    check_kept(plan)


@pytest.mark.parametrize("name", EACH_UNEVEN_PLAN)
def test_saved_values_that_share_bytes_are_listed(name):
    check_kept(uneven_plan(name))


def check_peak(plan):
    graph, step, lines = plan.graph, plan.peak_step, explain_peak(plan)
    held = replayed(plan)
    assert lines[0].startswith(f"The peak is at node {step} ({graph.nodes[step].label}) of")
    assert format_bytes(plan.live_bytes) in lines[0]
    for kind in KINDS:
        size = live_of_kind(plan, kind, step, held)
        share = f"{kind} {format_bytes(size)} ({size / plan.live_bytes:.0%})"
        assert (share in lines[1]) == bool(size)
    alive = [buffer for buffer in plan.live_at(step) if buffer.kind != "state"]
    for buffer, line in zip(alive[:10], lines[2:], strict=False):
        name, kind = held[step, buffer.index]
        assert line.split(": live")[0].startswith(f"  {format_bytes(buffer.bytes)}, {kind}, {name}")
        value = held_at(plan, buffer, step)
        assert ("workspace" in line) == (value is None)
        if value is None:
            continue
        there = [
            v for v in plan.residents[buffer.index]
            if v.node is None or graph.position[v.node] <= step
        ]  # fmt: skip
        last = max((s for v in there for s in graph.uses[v]), default=-1)
        if not set(there).isdisjoint(graph.outputs.values()):
            assert "live until the end, as the output" in line
        elif last > step:
            assert f"live until node {last} ({graph.nodes[last].label})" in line
        elif last == step:
            assert "read by the node itself" in line
        else:
            assert "its buffer is live until node" in line


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_the_peak(name):
    plan = small_plan(name)
    check_peak(plan)


@pytest.mark.parametrize("name", EACH_UNEVEN_PLAN)
def test_the_peak_where_values_share_bytes(name):
    check_peak(uneven_plan(name))


@pytest.mark.parametrize("name", ["wide mlp", "unet", "gpt2", "densenet"])
def test_the_cost_of_recomputation_is_printed(name):
    """Each node's seconds count once, however many of its results are live."""
    plan = planned(name)
    costs, step, graph = CostModel(plan.device), plan.peak_step, plan.graph
    total = sum(costs.seconds(node) for node in graph.nodes)
    nodes = {}
    for buffer in plan.live_at(step):
        there = [v for v in plan.residents.get(buffer.index, ()) if v.node is not None]
        there = [v for v in there if graph.position[v.node] <= step]
        parts = [
            v for v in there if plan.placements[v].how == "part" and v.node.op.name != "concat"
        ]
        value = held_at(plan, buffer, step)
        for made in parts or [value]:
            if made is not None and made.node is not None and made.node.phase == "forward":
                nodes.setdefault(made.node.op.name, set()).add(made.node)
    lines = [line for line in explain_peak(plan) if " of the step's seconds" in line]
    assert lines
    for line in lines:
        op, told = re.fullmatch(r"  .* of (\w+): ([\d.]+)% of the step's seconds", line).groups()
        seconds = sum(costs.seconds(node) for node in nodes.pop(op))
        assert float(told) == pytest.approx(100 * seconds / total, abs=0.05)
    assert len(lines) == 6 or not nodes


def test_costs_that_were_measured():
    plan = planned("wide mlp")
    slow = MeasuredCosts({"name": "cpu"}, tuple(
        Measurement(node_key(node), node.op.name, 1.0 if node.op.name == "linear" else 0.0, 1, 1, 1)
        for node in {node_key(n): n for n in plan.graph.nodes}.values()
    ))  # fmt: skip
    assert explain_peak(plan) != explain_peak(plan, CostModel(plan.device, slow))


def test_residents_are_those_written_last():
    plan = planned()
    buffer = max(plan.residents, key=lambda index: len(plan.residents[index]))
    span = plan.buffers[buffer].lifetime
    seen = [held_at(plan, plan.buffers[buffer], step) for step in range(span.first, span.last)]
    written = [v for v in plan.residents[buffer] if plan.placements[v].how != "view"]
    assert list(dict.fromkeys(seen)) == written
