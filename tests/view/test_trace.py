"""Traces: the counter is the plan's live bytes, nodes run one after another."""

import json

import pytest
from view.networks import EACH_SMALL_PLAN, planned, small_plan

import graphc as g
from graphc.plans.cost_model import CostModel
from graphc.plans.rank_model import model_rank
from graphc.view.clock import Clock, estimated
from graphc.view.measured import measured
from graphc.view.page_model import kinds_of
from graphc.view.trace import trace


def events(text, phase, name=None, process=1):
    found = json.loads(text)["traceEvents"]
    return [
        event for event in found
        if event["ph"] == phase and event["pid"] == process and name in (None, event["name"])
    ]  # fmt: skip


@pytest.mark.parametrize("name", [*EACH_SMALL_PLAN, "slots"])
def test_the_counter(name):
    has_slots = name == "slots"
    plan = planned("mlp", device="h200", overlap_copies=True) if has_slots else small_plan(name)
    text = trace(plan)
    counts = [event["args"]["bytes"] for event in events(text, "C", "live")]
    assert max(counts) == plan.live_bytes == json.loads(text)["otherData"]["live_bytes"]
    lasting = plan.state_bytes + plan.bytes_by_kind.get("slot", 0)
    assert counts == [*plan.live_profile, lasting]
    kinds = [event["args"] for event in events(text, "C", "live bytes of")]
    assert all(list(each) == list(kinds_of(plan)) for each in kinds)
    assert [sum(each.values()) for each in kinds] == counts
    assert json.loads(text)["otherData"]["arena_bytes"] == plan.arena_bytes
    nodes = events(text, "X")
    assert [event["args"]["inputs"] for event in nodes] == [
        [plan.graph.names[value] for value in node.inputs] for node in plan.graph.nodes
    ]


def test_nodes_run_one_after_another_for_the_seconds_of_the_cost_model():
    plan = planned()
    costs, time = CostModel(plan.device), 0.0
    spans = events(trace(plan), "X")
    assert [event["name"] for event in spans] == [node.label for node in plan.graph.nodes]
    for event, node in zip(spans, plan.graph.nodes, strict=True):
        assert event["ts"] == pytest.approx(time * 1e6, abs=1e-3)
        assert event["dur"] == pytest.approx(costs.seconds(node) * 1e6, abs=2e-3)
        assert event["cat"] == node.phase
        time += costs.seconds(node)


@pytest.mark.parametrize("length", [1e-9, 1.001e-6, 0.1, 3.3333e-7])
def test_times_stay_apart_where_a_reader_cuts_off_below_nanoseconds(length):
    """Perfetto does so, and drops a node that overlaps with the one before it."""
    plan = planned()
    clock = Clock("all alike", (length,) * len(plan.graph.nodes))
    spans = events(trace(plan, {"planned": clock}), "X")
    begins = [int(span["ts"] * 1000) for span in spans]
    ends = [begin + int(span["dur"] * 1000) for begin, span in zip(begins, spans, strict=True)]
    assert ends[:-1] == begins[1:]
    assert ends[-1] == round(length * len(spans) * 1e9)


def test_clocks_are_processes_side_by_side():
    plan = planned("mlp")
    text = trace(plan, {"planned": estimated(plan), "measured": measured(plan, 2)})
    names = [events(text, "M", "process_name", pid)[0]["args"]["name"] for pid in (1, 2)]
    assert names[0] == "planned: roofline of cpu"
    assert names[1].startswith("measured: each node's best of 2 steps on ")
    assert len(events(text, "X", process=1)) == len(events(text, "X", process=2)) > 0
    assert sum(event["dur"] for event in events(text, "X", process=2)) > 0


def test_exchanges_are_a_track_beside_nodes():
    plan = planned("mlp", ranks=2)
    text = trace(plan)
    spans = events(text, "X")
    exchanges = [event for event in spans if event["tid"] == 2]
    nodes = [event for event in spans if event["tid"] == 1]
    senders = [step for step, node in enumerate(plan.graph.nodes) if node.op.sends]
    assert [event["args"]["node"] for event in exchanges] == senders
    model = model_rank(plan)
    assert sum(event["dur"] for event in exchanges) == pytest.approx(1e6 * model.exchange_seconds)
    assert nodes[-1]["ts"] + nodes[-1]["dur"] == pytest.approx(1e6 * model.seconds, abs=1e-2)
    for event, step in zip(exchanges, senders, strict=True):
        begun = plan.graph.nodes[step].output
        ends = [nodes[n] for n in plan.graph.uses[begun] if plan.graph.nodes[n].op.awaits]
        assert ends
        assert event["ts"] >= nodes[step]["ts"] - 1e-2
        assert all(e["ts"] + e["dur"] >= event["ts"] + event["dur"] - 1e-2 for e in ends)


def test_a_plan_without_nodes():
    plan = g.plan(outputs=[g.input("x", (4,))])
    assert [e["args"]["bytes"] for e in events(trace(plan), "C", "live")] == [plan.live_bytes]


def test_events_with_a_duration_have_a_length():
    plan = planned("mlp")
    clock = Clock("very short", (1e-13,) * len(plan.graph.nodes))
    assert {event["dur"] for event in events(trace(plan, {"planned": clock}), "X")} == {0.001}
