"""Views of a plan with values on the host: they show the arena, and name what is elsewhere."""

import json
import pickle
import random

import pytest
from plans.with_copies import copied, random_trips

import graphc as g
from graphc.models import mlp
from graphc.view.explain import explain_value
from graphc.view.page import page
from graphc.view.page_model import kinds_of, live_by_kind, page_model
from graphc.view.peak import explain_kept, explain_peak
from graphc.view.snapshot import snapshot
from graphc.view.trace import trace


@pytest.fixture(scope="module")
def plan():
    plain = g.plan(mlp(layers=3, hidden=32, inputs=16, batch=8), optimizer=g.optim.SGD())
    return copied(plain, random_trips(plain, random.Random(5), 12))


def test_live_bytes_are_those_of_the_arena(plan):
    sizes = live_by_kind(plan)
    assert [sum(each.values()) for each in sizes] == list(plan.live_profile)
    assert max(plan.live_profile) <= plan.arena_bytes
    assert {each["host"] for each in sizes} == {0}


def test_the_page_shows_no_bytes_of_the_host(plan):
    kinds = kinds_of(plan)
    model = page_model(plan, "", kinds=kinds)
    on_host = [kinds[kind] == "host" for kind in model["buffers"]["kind"]]
    sizes = model["buffers"]["bytes"]
    assert {size for size, there in zip(sizes, on_host, strict=True) if there} == {0}
    ends = [offset + size for offset, size, there in
            zip(model["buffers"]["offset"], sizes, on_host, strict=True) if not there]  # fmt: skip
    assert max(ends) <= plan.arena_bytes
    assert "<html" in page({"plan": plan}, "title")


def test_other_views_show_the_arena(plan):
    (segment,) = pickle.loads(snapshot(plan))["segments"]
    assert segment["total_size"] == plan.arena_bytes
    assert json.loads(trace(plan))["otherData"]["arena_bytes"] == plan.arena_bytes
    value = next(value for value in plan.graph.values if value.on_host)
    assert " of host memory, " in " ".join(explain_value(plan, value))
    assert explain_peak(plan)
    assert explain_kept(plan)
    assert "arena address" in plan._repr_html_()
