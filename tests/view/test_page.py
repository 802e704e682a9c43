"""Pages are whole, are one file, and ask for nothing from outside."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from view.networks import planned
from view.reading import content

import graphc as g
from graphc.view.matching import identities
from graphc.view.page import page
from graphc.view.page_model import page_model

TABS = {"packed": planned("mlp"), "cheap": planned("mlp", recompute="cheap")}


class Reader(HTMLParser):
    """Elements, their attributes, and what stands in scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text):
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += text


def test_the_numbers_are_those_of_the_models():
    found = content(page(TABS, "two plans"))
    assert found["title"] == "two plans"
    same = [model["values"].pop("same") for model in found["plans"]]
    assert [model.pop("limit") for model in found["plans"]] == [None, None]
    assert [model.pop("lowering") for model in found["plans"]] == [[], []]
    wanted = [page_model(plan, label) for label, plan in TABS.items()]
    assert found["plans"] == json.loads(json.dumps(wanted))
    numbers = identities([plan.graph for plan in TABS.values()])
    assert same == [list(each.values()) for each in numbers]


def test_nothing_comes_from_outside():
    text = page(TABS, "t")
    for _, attributes in Reader(text).elements:
        assert not attributes.keys() & {"src", "href", "srcset", "data", "action"}
    assert not re.search(
        r"\w+://|url\(|@import|\bimport\b|fetch\(|XMLHttp|WebSocket|sendBeacon", text
    )
    (policy,) = [a["content"] for _, a in Reader(text).elements if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")


def test_compression_is_worth_it():
    """Four plans of one network share most of their text, and numbers are small."""
    plans = {str(number): TABS["cheap"] for number in range(4)}
    text, found = page(plans, "t"), json.dumps(content(page(plans, "t")))
    assert len(text) < len(page({}, "t")) + len(found) / 3


def test_the_same_plans_give_the_same_bytes():
    assert page(TABS, "t") == page(TABS, "t")


def test_names_cannot_leave_their_place():
    evil = "</script><script>alert('&')</script>@script@"
    text = page({evil: TABS["packed"]}, evil, notes=[evil])
    found = content(text)
    assert found["title"] == found["notes"][0] == found["plans"][0]["label"] == evil
    assert [tag for tag, _ in Reader(text).elements].count("script") == 2
    escaped = "&lt;/script&gt;&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;@script@"
    assert text.count(escaped) == 1
    assert "alert" not in text.replace(escaped, "")


def test_elements_that_the_script_looks_for_exist():
    text = page(TABS, "t")
    ids = {attributes["id"] for _, attributes in Reader(text).elements if "id" in attributes}
    assert set(re.findall(r'element\("([\w-]+)"\)', text)) <= ids


@pytest.mark.parametrize("allocate", ["none", "packed"])
def test_an_inference_plan_without_nodes_that_train(allocate):
    x = g.input("x", (4, 3))
    plan = g.plan(outputs=[g.relu(x)], allocate=allocate)
    assert content(page({"only": plan}, "t"))["plans"][0]["values"]["name"] == ["%x", "%0"]


def test_a_plan_of_an_input_alone():
    """No node runs: the page has a step all the same, as `live_profile` has."""
    plan = g.plan(outputs=[g.input("x", (4,))])
    found = content(page({"only": plan}, "t"))["plans"][0]
    assert len(found["live"]) == 1


@pytest.mark.slow
def test_the_page_of_resnet_1001_is_small():
    from graphc.models import resnet

    plan = g.plan(resnet(1001), optimizer=g.optim.SGD())
    text = page({"packed": plan}, "ResNet 1001")
    assert len(text.encode()) < 10_000_000
    assert len(content(text)["plans"][0]["buffers"]["bytes"]) == len(plan.buffers) > 20_000
    assert np.isclose(max(content(text)["plans"][0]["live"]), plan.live_bytes)
