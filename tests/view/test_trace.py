"""Traces: the counter is the plan's live bytes, nodes run one after another."""

import json

import pytest
from view.networks import every_plan, planned

import graphc as g
from graphc.passes.cost import CostModel
from graphc.view.page_model import KINDS
from graphc.view.trace import trace


def events(text, phase, name=None, process=1):
    found = json.loads(text)["traceEvents"]
    return [
        event for event in found
        if event["ph"] == phase and event["pid"] == process and name in (None, event["name"])
    ]  # fmt: skip


@pytest.mark.parametrize("plan", every_plan(), ids=repr)
def test_the_counter(plan):
    text = trace(plan)
    counts = [event["args"]["bytes"] for event in events(text, "C", "live bytes")]
    assert max(counts) == plan.live_bytes == json.loads(text)["otherData"]["live_bytes"]
    assert counts[:-1] == list(plan.live_profile)
    kinds = [event["args"] for event in events(text, "C", "live bytes by kind")]
    assert all(list(each) == list(KINDS) for each in kinds)
    assert [sum(each.values()) for each in kinds] == list(plan.live_profile)


def test_nodes_run_one_after_another_for_the_seconds_of_the_cost_model():
    plan = planned()
    costs, time = CostModel(plan.device), 0.0
    spans = events(trace(plan), "X")
    assert [event["name"] for event in spans] == [node.label for node in plan.graph.nodes]
    for event, node in zip(spans, plan.graph.nodes, strict=True):
        assert event["ts"] == pytest.approx(time * 1e6, abs=1e-6)
        assert event["dur"] == pytest.approx(costs.seconds(node) * 1e6, abs=1e-6)
        assert event["cat"] == node.phase
        time += costs.seconds(node)


def test_clocks_are_processes_side_by_side():
    plan = planned("mlp")
    text = trace(plan, {"planned": CostModel(plan.device), "again": CostModel(plan.device)})
    names = [events(text, "M", "process_name", pid)[0]["args"]["name"] for pid in (1, 2)]
    assert names == ["planned: roofline of cpu", "again: roofline of cpu"]
    assert len(events(text, "X", process=1)) == len(events(text, "X", process=2)) > 0


def test_a_plan_without_nodes():
    plan = g.plan(outputs=[g.input("x", (4,))])
    assert [e["args"]["bytes"] for e in events(trace(plan), "C")] == [plan.live_bytes]


@pytest.mark.perfetto
def test_perfetto_loads_it(tmp_path):
    """Its trace processor is a program of its own, which its package may have to fetch."""
    processor = pytest.importorskip("perfetto.trace_processor")
    plan = planned()
    path = tmp_path / "plan.trace.json"
    path.write_text(trace(plan))
    try:
        opened = processor.TraceProcessor(trace=str(path))
    except Exception as error:  # whatever its download raises
        pytest.skip(f"no trace processor: {error}")
    with opened:
        (row,) = opened.query(
            "select max(value) as most from counter join counter_track on track_id = "
            "counter_track.id where counter_track.name like 'live bytes%bytes'"
        )
        assert row.most == plan.live_bytes
        (row,) = opened.query("select count(*) as spans from slice")
        assert row.spans == len(plan.graph.nodes)
