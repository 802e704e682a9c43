"""Copies to the host in all views but the page in a browser: against the plan and the model."""

import io
import itertools
import json
import re
from collections import Counter

import numpy as np
import pytest
from cli.running import run
from view.networks import COPIED, copied_at_random, planned, with_copies, without_copies
from view.reading import content

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.ir.graph import State
from graphc.ir.host_copies import copied_values, is_fetched, original
from graphc.plans.copy_model import model_copies
from graphc.plans.cost_model import CostModel
from graphc.plans.timeline import timeline
from graphc.view.aliases import Aliases
from graphc.view.difference import differences
from graphc.view.explain import explain_value, value_facts
from graphc.view.matching import identities, pairs
from graphc.view.measured import measured
from graphc.view.offloading import Offloading
from graphc.view.page import page
from graphc.view.page_model import host_profile, live_by_kind, page_model, phases
from graphc.view.peak import explain_kept, explain_peak
from graphc.view.trace import trace


@pytest.fixture(
    params=["planned", *COPIED[:-1], pytest.param(COPIED[-1], marks=pytest.mark.slow)], ids=str
)
def plan(request):
    return with_copies() if request.param == "planned" else copied_at_random(*request.param)


def ends(plan):
    """Begin of each copy → the arrival that waits for it, by operands alone."""
    return {
        node.inputs[0].node: node
        for node in plan.graph.nodes
        if node.op.awaits and node.inputs[0].node.op.copies_to
    }


def test_the_plan_copies_and_waits():
    """Else the tests here would say less than they seem to."""
    model = model_copies(with_copies())
    assert len([copy for copy in model.copies if copy.to == "host"]) > 2
    assert len([copy for copy in model.copies if copy.stall]) > 2
    sources = [v for each in COPIED for v in copied_values(copied_at_random(*each).graph)]
    assert any(value.node is None for value in sources)
    fetches = [
        original(v)
        for each in COPIED
        for v in copied_at_random(*each).graph.values
        if is_fetched(v)
    ]
    assert max(Counter(fetches).values()) > 1


def test_columns_of_copies_are_those_of_the_model(plan):
    model = json.loads(json.dumps(page_model(plan, "tab")))
    columns, values, arrivals = model["host_copies"], plan.graph.values, ends(plan)
    assert (model["host_bytes"], model["host_start"]) == (plan.host_bytes, plan.host_start)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row, copy in zip(rows, timeline(plan).copies, strict=True):
        node = plan.graph.nodes[copy.node]
        assert (row["node"], row["to"], row["bytes"]) == (copy.node, copy.to, copy.bytes)
        assert plan.graph.nodes[row["arrival"]] is arrivals[node]
        assert row["begin"] == pytest.approx(copy.start, rel=1e-3)
        assert row["seconds"] == pytest.approx(copy.end - copy.start, rel=1e-3)
        assert row["stall"] == pytest.approx(copy.stall, rel=1e-3)
        assert values[row["source"]] is node.inputs[0]
        assert values[row["result"]] is arrivals[node].output
        source = node.inputs[0]
        while source.node in arrivals.values():
            source = source.node.inputs[0].node.inputs[0]
        assert values[row["original"]] is source


def test_live_bytes_of_both_memories(plan):
    model, there = page_model(plan, "tab"), host_profile(plan)
    assert [sum(sizes.values()) for sizes in live_by_kind(plan)] == list(plan.live_profile)
    for step in range(len(plan.graph.nodes)):
        sizes = {"host": 0, "arena": 0}
        rows = zip(
            *(model["buffers"][n] for n in ("first", "last", "offset", "bytes")), strict=True
        )
        for first, last, offset, size in rows:
            if first <= step < last:
                sizes["host" if offset >= plan.host_start else "arena"] += -(-size // 256) * 256
        assert plan.alignment == 256
        assert sizes == {"host": there[step], "arena": plan.live_profile[step]}
    assert max(there) <= plan.host_start + plan.host_bytes


def test_nodes_of_copies_have_the_phase_in_which_they_run(plan):
    found = phases(plan.graph)
    for step, node in enumerate(plan.graph.nodes):
        if node.host_copy is None:
            assert found[step] == node.phase
            continue
        before = [n.phase for n in plan.graph.nodes[:step] if n.host_copy is None]
        before = [phase for phase in before if phase != "update"]
        is_forward = not before or before[-1] == "forward"
        assert found[step] == ("forward" if is_forward else "gradient")


def test_pages_without_copies_have_no_part_for_them():
    alone, both = page({"a": without_copies()}, "t"), page({"a": with_copies()}, "t")
    assert "host-map" not in alone
    assert "with a host map" not in alone
    assert "host_copies" not in content(alone)["plans"][0]
    assert 'id="host-map"' in both
    mixed = content(page({"a": without_copies(), "b": with_copies()}, "t"))["plans"]
    assert ["host_copies" in model for model in mixed] == [False, True]


def events(text, phase):
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == phase]


def test_the_trace_has_a_track_for_each_direction(plan):
    text, model = trace(plan), model_copies(plan)
    names = {e["tid"]: e["args"]["name"] for e in events(text, "M") if e["name"] == "thread_name"}
    assert names.items() >= {(3, "copies to the host")}
    for track, to in ((3, "host"), (4, "device")):
        spans = [event for event in events(text, "X") if event["tid"] == track]
        copies = [copy for copy in model.copies if copy.to == to]
        for event, copy in zip(spans, copies, strict=True):
            assert event["args"]["node"] == copy.node
            assert event["args"]["bytes"] == copy.bytes
            assert event["args"]["stall_us"] == pytest.approx(copy.stall * 1e6, abs=2e-3)
            assert event["ts"] == pytest.approx(copy.start * 1e6, abs=2e-3)
            assert event["dur"] == pytest.approx((copy.end - copy.start) * 1e6, abs=2e-3)
            source = original(plan.graph.nodes[copy.node].output)
            assert event["name"].split()[0] == plan.graph.names[source]
        times = [(int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in spans]
        assert all(a + length <= b for (a, length), (b, _) in itertools.pairwise(times))
    counts = [e["args"]["bytes"] for e in events(text, "C") if e["name"] == "live on the host"]
    assert counts == [*host_profile(plan), 0]
    nodes = [event for event in events(text, "X") if event["tid"] == 1]
    assert nodes[-1]["ts"] + nodes[-1]["dur"] == pytest.approx(1e6 * model.seconds, abs=1e-1)


def test_a_trace_without_copies_has_none():
    text = trace(without_copies())
    assert {event["tid"] for event in events(text, "X")} == {1}
    assert "host" not in text


def test_copies_of_measured_steps(plan):
    clock, arrivals = measured(plan, 2), ends(plan)
    assert clock.source.startswith("the shortest of 2 steps on ")
    copies = [(step, node) for step, node in enumerate(plan.graph.nodes) if node.op.copies_to]
    begins = [0.0, *itertools.accumulate(clock.seconds)]
    for copy, (step, node) in zip(clock.copies, copies, strict=True):
        end = plan.graph.position[arrivals[node]]
        assert (copy.node, copy.to) == (step, node.op.copies_to)
        assert begins[step] <= copy.start <= copy.end <= begins[end + 1]
        assert copy.stall == pytest.approx(max(copy.end - begins[end], 0.0))
    assert json.loads(trace(plan, {"measured": clock}))


def test_explain_tells_when_a_value_leaves_and_returns(plan):
    graph, arrivals = plan.graph, ends(plan)
    copies, names = timeline(plan).copies, graph.names
    for value in copied_values(graph):
        if isinstance(value, State):
            continue
        text = "\n".join(explain_value(plan, value))
        own = [c for c in copies if original(graph.nodes[c.node].output) is value]
        for copy in own:
            begin = graph.nodes[copy.node]
            start = "to the host" if copy.to == "host" else "back"
            assert f"The copy {start} starts at node {copy.node} ({begin.label})" in text
            assert f"takes {copy.end - copy.start:.2g} seconds" in text
            arrival = arrivals[begin]
            waits = f"stalls {copy.stall:.2g} seconds for it, at node {graph.position[arrival]} ("
            assert (waits in text) or not copy.stall
            if copy.to == "device":
                readers = Aliases(plan).readers(arrival.output)
                first = f"first use is node {readers[0].step} (" if readers else "no node reads it"
                assert f"It writes {names[arrival.output]}; " in text
                assert first in text
        assert text.count("The step stalls") == sum(bool(copy.stall) for copy in own)
        assert text.count("does not stall for it") == sum(not copy.stall for copy in own)
        assert "Nothing of it is copied" not in text
        facts = value_facts(plan, value)["host_copies"]
        assert [fact["first_node"] for fact in facts] == [copy.node for copy in own]
        assert [fact["stall_seconds"] for fact in facts] == [copy.stall for copy in own]


def test_the_bytes_of_a_copied_value_are_free_after_its_copy():
    plan = with_copies()
    for value in copied_values(plan.graph):
        text = "\n".join(explain_value(plan, value))
        (step,) = re.findall(r"bytes in the arena are free after node (\d+)", text)
        end = plan.lifetime_end(plan.buffers[plan.placements[value].buffer])
        assert int(step) < end
        readers = [n for n, node in enumerate(plan.graph.nodes) if value in node.inputs]
        assert int(step) >= max(readers)


def test_explain_compares_copies_with_recomputation():
    plan, costs = with_copies(), CostModel.of(with_copies())
    offloading, told = Offloading(plan, Aliases(plan), costs), 0
    for value in copied_values(plan.graph):
        copies = offloading.of(value)
        back = [copy for copy in copies if copy.timed.to == "device"]
        again = offloading.nodes_again(value, plan.graph.position[back[0].arrival])
        # From what is live there, the nodes run: each operand is there, given, or computed before.
        assert value.node in again
        for node in again:
            step = plan.graph.position[back[0].arrival]
            for operand in node.inputs:
                uses = [reader.step for reader in Aliases(plan).readers(operand)]
                is_live = operand.node is None or max(uses) >= step
                fetched = [
                    v for v in plan.graph.values
                    if is_fetched(v) and original(v) is operand
                    and plan.graph.position[v.node] < step <= Aliases(plan).readers(v)[-1].step
                ]  # fmt: skip
                assert is_live or fetched or operand.node in again
        seconds = sum(costs.seconds(node) for node in again)
        stall = sum(copy.timed.stall for copy in copies)
        (sentence,) = [s for s in explain_value(plan, value) if s.startswith("Recomputing it")]
        assert f"would take {seconds:.2g} seconds" in sentence
        assert f"stall the step {stall:.2g} seconds" in sentence
        assert f"{len(again)} node" in sentence
        faster = "copying is faster" if seconds > stall else "recomputing would be faster"
        assert faster in sentence
        told += 1
    assert told > 2


def test_explain_of_values_that_stay_and_of_copies():
    plan = with_copies()
    copied = set(copied_values(plan.graph))
    saved = [value for value in plan.saved() if value not in copied and original(value) is value]
    assert saved
    for value in saved:
        assert any("Nothing of it is copied" in line for line in explain_value(plan, value))
    for value in plan.graph.values:
        text = "\n".join(explain_value(plan, value))
        if original(value) is not value:
            assert f"of {plan.graph.names[original(value)]}" in text
            assert f"{plan.graph.names[value]} is {value.type}" in text
            assert "saved for the backward pass" not in text
    for value in without_copies().graph.values:
        assert not any("host" in line for line in explain_value(without_copies(), value))


def test_saved_values_and_the_peak(plan):
    copied = copied_values(plan.graph)
    size = format_bytes(sum(value.type.bytes for value in copied))
    assert any(f"{len(copied)} values of {size} are copied" in line for line in explain_kept(plan))
    assert explain_peak(plan)
    assert not any("on the host" in line for line in explain_kept(without_copies()))


def test_a_fetched_value_matches_its_original(plan):
    (numbers,) = identities([plan.graph])
    for value in plan.graph.values:
        assert (numbers[value] == numbers[original(value)]) == (
            original(value) is value or is_fetched(value)
        )


@pytest.mark.parametrize("network", ["mlp", "lstm", "resnet"])
def test_values_of_plans_with_and_without_copies_match(network):
    """Every value that is no copy has its match, since copies change no computation."""
    plain, plan = planned(network), copied_at_random(network, dict(COPIED)[network])
    for before, after in ((plain, plan), (plan, plain)):
        found = list(pairs(before.graph, after.graph))
        for a, b in found:
            alone = a if b is None else b if a is None else None
            assert alone is None or original(alone) is not alone
            if a is not None and b is not None:
                assert original(a) is a
                assert original(b) is b
                assert (a.type, a.node and a.node.label) == (b.type, b.node and b.node.label)
        assert sum(a is not None and b is not None for a, b in found) == len(plain.graph.values)
    assert all(a is b for a, b in pairs(plan.graph, plan.graph))


def test_differences_name_what_is_copied():
    before, after = without_copies(), with_copies()
    told, copied = differences(before, after), copied_values(after.graph)
    total, host = sum(v.type.bytes for v in copied), format_bytes(after.host_bytes)
    assert f"host memory: 0 B → {host}" in told
    stalls = f"{model_copies(after).stall_seconds:.3g}"
    assert f"stalls of copies: 0 → {stalls} seconds by the cost model" in told
    (line,) = [line for line in told if line.startswith("copied to the host only in the second")]
    assert f": {len(copied)} values of {format_bytes(total)} in total" in line
    back = differences(after, before)
    assert f"host memory: {host} → 0 B, -100.0%" in back
    assert any(line.startswith("copied to the host only in the first") for line in back)
    assert not any(line.endswith("plan") for line in (*told, *back))
    same = differences(after, after)
    assert all("both" in line or line.startswith("stalls") for line in same)
    assert not any("host" in line for line in differences(before, before))


def test_commands_show_plans_from_files(capsys, tmp_path):
    paths = [str(tmp_path / name) for name in ("without.json", "with.json")]
    for path, plan in zip(paths, (without_copies(), with_copies()), strict=True):
        g.save_plan(plan, path)
    code, out, _ = run(capsys, "compare", *paths)
    assert (code, format_bytes(with_copies().host_bytes) in out) == (0, True)
    code, out, _ = run(capsys, "compare", paths[0])
    assert (code, "host" in out) == (0, False)
    code, out, _ = run(capsys, "view", "--diff", *paths, "-o", str(tmp_path / "both.html"))
    assert (code, "stalls of copies: 0" in out) == (0, True)
    found = content((tmp_path / "both.html").read_text())["plans"]
    assert ["host_copies" in model for model in found] == [False, True]
    value = with_copies().graph.names[copied_values(with_copies().graph)[0]]
    code, out, _ = run(capsys, "explain", paths[1], value)
    assert (code, "The copy back starts" in out) == (0, True)


def test_pictures_show_host_memory():
    picture = pytest.importorskip("graphc.view.picture", exc_type=g.GraphcError)
    image = pytest.importorskip("PIL.Image")

    def share(png):
        pixels = np.asarray(image.open(io.BytesIO(png)).convert("RGB")).astype(int)
        return (np.abs(pixels - [0x8A, 0x6D, 0x3B]).max(axis=2) <= 24).mean()

    assert share(picture.plan_picture(with_copies(), "t")) > 0.02
    assert share(picture.plan_picture(without_copies(), "t")) < 0.001
    bars = [("copies", with_copies()), ("none", without_copies())]
    drawn = picture.compare_picture(bars, "t")
    assert drawn == picture.compare_picture(bars, "t")
    assert share(drawn) < 0.001  # the bars are those of the arena
