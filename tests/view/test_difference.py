"""Sentences about two plans hold what they say: sizes, peaks, copies, places."""

import re
from dataclasses import replace

import pytest
from view.networks import pairs_of, planned
from view.replay import live_of_kind

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.plans.cost_model import CostModel
from graphc.view.aliases import Aliases
from graphc.view.difference import _change, differences
from graphc.view.matching import pairs


def test_a_plan_does_not_differ_from_itself():
    plan = planned()
    told = differences(plan, plan)
    assert len(told) == 4
    assert all("both" in sentence for sentence in told)


def test_moved_values_have_another_address():
    plan = planned()
    state = max((b for b in plan.buffers if b.kind == "state"), key=lambda b: b.offset)
    values = [v for v, p in plan.placements.items() if p.buffer == state.index]
    buffers = list(plan.buffers)
    buffers[state.index] = replace(state, offset=state.offset + 256)
    moved = replace(plan, buffers=tuple(buffers))
    (sentence,) = [s for s in differences(plan, moved) if s.startswith("moved")]
    assert sentence.startswith(f"moved: {len(values)} of {len(plan.graph.values)} values")
    assert f"{state.offset:#x} → {state.offset + 256:#x}" in sentence


def test_the_difference_names_recomputed_nodes_and_both_peaks():
    before, after = planned(), planned(recompute="sublinear")
    text = "\n".join(differences(before, after))
    copies = [
        v for v in after.graph.values
        if v.node and v.node.phase == "mirror" and after.placements[v].how not in ("view", "part")
    ]  # fmt: skip
    total = sum(value.type.bytes for value in copies)
    assert f"only in the second: {len(copies)} values of {format_bytes(total)}" in text
    for plan in (before, after):
        label = plan.graph.nodes[plan.peak_step].label
        assert f"node {plan.peak_step} ({label}) of {len(plan.graph.nodes)}" in text
    told = "\n".join(differences(after, before))
    assert f"only in the first: {len(copies)} values" in told
    first = next(s for s in differences(before, after) if s.startswith("the arena"))
    change = after.arena_bytes / before.arena_bytes - 1
    assert re.search(r"[-+][\d.]+%", first).group() == f"{change:+.1%}"


def test_plans_without_nodes_and_of_other_networks():
    x = g.input("x", (4,))
    empty, one = g.plan(outputs=[x]), g.plan(outputs=[g.relu(x)])
    assert any("start" in sentence for sentence in differences(empty, one))
    assert any("start" in sentence for sentence in differences(one, empty))
    first = differences(planned("mlp"), planned("lstm"))[0]
    assert first.startswith("the plans are of different networks")


def test_kinds_at_the_peak():
    before, after = planned("mlp"), planned("mlp", recompute="cheap")
    told = differences(before, after)
    for kind in ("feature map", "gradient", "state", "input", "mirror", "workspace"):
        sizes = []
        for plan in (before, after):
            sizes.append(live_of_kind(plan, kind, plan.peak_step))
        sentence = [line for line in told if line.startswith(f"{kind} bytes at the peak")]
        assert len(sentence) == (sizes[0] != sizes[1])
        if sentence and format_bytes(sizes[0]) != format_bytes(sizes[1]):
            assert f": {format_bytes(sizes[0])} → {format_bytes(sizes[1])}" in sentence[0]


def test_sizes_that_round_equally_are_printed_in_bytes():
    assert _change("the arena", 2**20, 2**20 + 256) == "the arena: 1,048,576 → 1,048,832 bytes"
    assert _change("the arena", 2**20, 2**20) == "the arena: 1.00 MiB in both"


@pytest.mark.parametrize(
    ("network", "policy"), pairs_of(["lstm", "gpt2", "unet"], ["cheap", "recursive"])
)
def test_stages_are_compared_by_nodes_seconds_and_live_bytes(network, policy):
    before = planned(network, fuse=False)
    after = planned(network, fuse=False, recompute=policy)
    told, seen = differences(before, after), 0
    for phase in ("forward", "gradient", "mirror", "update"):
        facts = []
        for plan in (before, after):
            nodes = [n for n in plan.graph.nodes if n.phase == phase]
            steps = [plan.graph.position[node] for node in nodes]
            seconds = sum(CostModel(plan.device).seconds(node) for node in nodes)
            most = max((plan.live_profile[step] for step in steps), default=0)
            facts.append((str(len(nodes)), f"{seconds:.3g}", format_bytes(most)))
        lines = [line for line in told if line.startswith(f"{phase}: ")]
        assert len(lines) == (facts[0] != facts[1])
        if not lines:
            continue
        pattern = r"(.*) nodes, (.*) seconds by the cost model, peak (.*) live"
        for entry, *pair in zip(
            re.fullmatch(rf"{phase}: {pattern}", lines[0]).groups(), *facts, strict=True
        ):
            assert entry.split(" → ") == list(dict.fromkeys(pair))
        seen += 1
    assert seen >= 2


@pytest.mark.parametrize(
    ("network", "policy"),
    pairs_of(["lstm", "gpt2", "unet", "resnet"], ["cheap", "sublinear", "recursive"]),
)
def test_last_reads(network, policy):
    """Counted anew, by every value's own nodes; views and parts go with what has their bytes."""
    before = planned(network, fuse=False)
    after = planned(network, fuse=False, recompute=policy)
    match = {a: b for a, b in pairs(before.graph, after.graph) if a is not None}
    told, counted = differences(before, after), {"an earlier": [], "a later": []}
    aliases = {plan: Aliases(plan) for plan in (before, after)}
    for a, b in match.items():
        if before.placements[a].how in ("view", "part"):
            continue
        ends = []
        for plan, value in ((before, a), (after, b)):
            graph = plan.graph
            steps = [reader.step for reader in aliases[plan].readers(value)]
            born = 0 if value.node is None else graph.position[value.node]
            end = max(steps, default=born)
            node = graph.nodes[end]
            ends.append((end / len(graph.nodes), node.label, node.phase, node.level))
        if ends[0][1:] != ends[1][1:]:
            counted["an earlier" if ends[1][0] < ends[0][0] else "a later"].append(a.type.bytes)
    assert any(counted.values())
    for which, sizes in counted.items():
        sentences = [line for line in told if f"in {which} part of the step" in line]
        assert len(sentences) == bool(sizes)
        if sizes:
            values = f"{len(sizes)} value{'s' if len(sizes) > 1 else ''}"
            assert f": {values} of {format_bytes(sum(sizes))}, " in sentences[0]
