"""What a buffer is called and counted as at a node, against a replay of all writes."""

import re

import pytest
from view.networks import SMALL_PLANS, UNEVEN, planned, small_plan, uneven_plans
from view.replay import replayed

import graphc as g
from graphc.models import gpt2
from graphc.plans.names import buffer_name, held_at, kind_at, spans
from graphc.plans.printout import LARGEST, format_plan
from graphc.view.page_model import KINDS, live_by_kind, page_model
from graphc.view.peak import explain_peak


def check_names_and_kinds(plan):
    found = replayed(plan)
    for (step, index), (name, kind) in found.items():
        buffer = plan.buffers[index]
        assert buffer_name(plan, buffer, step) == name
        assert kind_at(plan, buffer, step) == kind
    for buffer in plan.buffers:
        nodes = [(step, s.kind) for s in spans(plan, buffer) for step in range(s.first, s.last)]
        life = range(buffer.lifetime.first, plan.lifetime_end(buffer))
        assert nodes == [(step, found[step, buffer.index][1]) for step in life]


REDUNDANT = ("resnet, none", "resnet, sharing", "resnet, cheap", "lstm, none", "lstm, sharing")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in REDUNDANT else [])
        for name in SMALL_PLANS
    ],
)
def test_a_buffer_has_the_name_and_the_kind_of_what_was_written_last(name):
    check_names_and_kinds(small_plan(name))


@pytest.mark.parametrize("name", UNEVEN)
def test_a_buffer_that_is_shared_has_the_name_and_the_kind_of_what_was_written_last(name):
    check_names_and_kinds(uneven_plans()[name])


def test_the_gradient_over_a_feature_map_counts_as_a_gradient():
    """The gradient of a loss overwrites what its forward pass kept."""
    loss = gpt2(layers=2, width=16, heads=2, seq_len=16, batch=2, vocab=4000)
    plan = g.plan(loss, optimizer=g.optim.SGD())
    step = plan.peak_step
    largest = next(b for b in plan.live_at(step) if b.kind == "feature map")
    value = held_at(plan, largest, step)
    assert value.node.op.name == "softmax_cross_entropy_gradient"
    assert kind_at(plan, largest, step) == "gradient"
    gradients = live_by_kind(plan)[step]["gradient"]
    assert largest.bytes <= gradients <= sum(b.bytes for b in plan.live_at(step))
    assert live_by_kind(plan)[largest.lifetime.first]["gradient"] < largest.bytes
    assert f"gradient {g.byte_sizes.format_bytes(gradients)}" in explain_peak(plan)[1]


OF_POLICIES = {("resnet", "none"), ("lstm", "none"), ("densenet", "none"), ("unet", "none")}
"""Networks that are quick only with their copies."""


def peak_of_the_printout(plan):
    """(kind, name) of the largest buffers at the peak."""
    lines = re.sub(r"\n {30}", " ", format_plan(plan)).splitlines()  # long names go on below
    rows = lines[next(i for i, line in enumerate(lines) if line.startswith("peak at ")) + 1 :]
    pattern = rf" +\S+ \w+  ({'|'.join(KINDS)}) +(\S.*)"
    return [re.fullmatch(pattern, row).groups() for row in rows[:LARGEST] if "smaller" not in row]


def peak_of_explain(plan):
    """(kind, name) of the largest buffers at the peak but states."""
    pattern = rf"  \S+ \w+, ({'|'.join(KINDS)}), (\S+ \(.*?\)|workspace of \S+|\S+?)(?::.*)?"
    found = [re.fullmatch(pattern, line) for line in explain_peak(plan)[2:12]]
    return [each.groups() for each in found if each]


def peak_of_the_page(plan, model):
    """(kind, name) of buffers at the peak by the columns of a page, largest first."""
    columns, step = model["buffers"], model["peak_step"]
    values, nodes, texts = model["values"], model["nodes"], model["texts"]
    found = []
    for buffer in plan.live_at(step):
        kind = columns["kind"][buffer.index]
        for begin, later in columns["turns"].get(buffer.index, []):
            kind = later if begin <= step else kind
        value = held_at(plan, buffer, step)
        name, at = "", columns["first"][buffer.index]
        if value is not None:
            number = list(plan.graph.values).index(value)
            name, at = values["name"][number], values["node"][number]
        scope = texts[nodes["scope"][at]]
        label = f"{scope}/{texts[nodes['op'][at]]}" if scope else texts[nodes["op"][at]]
        told = f"{name} ({label})" if at >= 0 else name
        found.append((KINDS[kind], f"workspace of {label}" if value is None else told))
    return found


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(
            name, policy, marks=[pytest.mark.slow] if (name, policy) in OF_POLICIES else []
        )
        for name in ("mlp", "resnet", "lstm", "gpt2", "densenet", "unet")
        for policy in ("none", "cheap")
    ],
)
def test_a_buffer_has_one_name_and_kind_in_the_printout_in_explain_and_on_the_page(name, policy):
    plan = planned(name, recompute=policy)
    page = peak_of_the_page(plan, page_model(plan, ""))
    printed, explained = peak_of_the_printout(plan), peak_of_explain(plan)
    assert printed == page[: len(printed)]
    assert len(printed) == min(LARGEST, len(page))
    others = [entry for entry in page if entry[0] != "state"]
    assert explained == others[: len(explained)]
    assert len(explained) == min(10, len(others))
