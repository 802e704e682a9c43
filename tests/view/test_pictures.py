"""Pictures: the same bytes for the same plan, the colours of what is in it, and true parts."""

import io
import sys
from collections import Counter
from itertools import groupby
from xml.etree import ElementTree

import numpy as np
import pytest
from cli.running import run
from view.networks import EACH_SMALL_PLAN, planned, small_plan
from view.replay import replayed

import graphc as g
from graphc.cli import plan as plan_command
from graphc.plans.html_form import COLOURS, RECTANGLES
from graphc.view.page import _template

picture = pytest.importorskip("graphc.view.picture", exc_type=g.GraphcError)


def pixels(png):
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def share(image, colour):
    """Of the pixels near a colour."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return (np.abs(image - wanted).max(axis=2) <= 24).mean()


def test_a_picture_shows_the_kinds_and_is_the_same_every_time():
    plan = planned(recompute="cheap")
    png = picture.plan_picture(plan, "small")
    assert png == picture.plan_picture(plan, "small")
    image = pixels(png)
    for kind in ("state", "feature map", "mirror", "gradient"):
        assert share(image, COLOURS[kind]) > 0.002
    assert share(pixels(picture.plan_picture(planned(), "small")), COLOURS["mirror"]) < 0.002


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_the_parts_of_a_bar_are_the_live_bytes(name):
    plan = small_plan(name)
    parts = picture.peak_bytes_by_kind(plan)
    assert sum(parts.values()) == plan.live_bytes <= plan.arena_bytes
    assert parts["state"] == plan.state_bytes


def test_bars_and_frontier():
    plans = [("packed", planned()), ("cheap", planned(recompute="cheap"))]
    bars = picture.compare_picture(plans, "two")
    assert bars == picture.compare_picture(plans, "two")
    assert share(pixels(bars), COLOURS["feature map"]) > 0.01
    points = g.frontier(g.mean(g.relu(g.linear(g.input("x", (64, 8)), 8))),
                        optimizer=g.optim.SGD())  # fmt: skip
    drawn = picture.frontier_picture(points, dict(plans), points[0].bound_bytes, "bytes")
    assert drawn.startswith(b"\x89PNG")
    assert share(pixels(drawn), "#d55e00") > 0


def test_pages_and_pictures_have_the_same_colours():
    style = _template("page.css").split('[data-theme="dark"]')[0]
    for kind, colour in COLOURS.items():
        assert f"--{kind.replace(' ', '-')}: {colour};" in style


@pytest.mark.parametrize("command", [
    ["view", "mlp", "-o", "plan.png"], ["compare", "mlp", "-o", "plan.png"],
    ["plan", "mlp", "--frontier", "-o", "plan.png"],
], ids=" ".join)  # fmt: skip
def test_a_missing_matplotlib_is_told_before_anything_is_planned(
    capsys, monkeypatch, tmp_path, command
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "graphc.view.picture", raising=False)
    monkeypatch.setattr(plan_command, "build", None)
    code, _, error = run(capsys, *command)
    assert code == 2
    assert "pip install matplotlib, or pip install '.[view]' in a checkout" in error


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_a_notebook_shows_the_plan_true_to_scale(name):
    plan = small_plan(name)
    text = plan._repr_html_()
    tree = ElementTree.fromstring(text.replace("&emsp;", " "))
    drawing, curve = tree.iter("svg")
    width, height = float(drawing.get("width")), float(drawing.get("height"))
    rectangles = list(drawing.iter("rect"))
    kinds = {}
    for (_, buffer), (_, kind) in sorted(replayed(plan).items()):
        kinds.setdefault(buffer, []).append(kind)
    runs = sum(1 for each in kinds.values() for _ in groupby(each))
    assert len(rectangles) == min(RECTANGLES, runs)
    colours = Counter(r.get("fill") for r in rectangles)
    counted = Counter(COLOURS[kind] for each in kinds.values() for kind, _ in groupby(each))
    assert runs > RECTANGLES or colours == counted
    area = sum(float(r.get("width")) * float(r.get("height")) for r in rectangles)
    steps = len(plan.graph.nodes)
    wanted = sum(
        (min(b.lifetime.last, steps) - b.lifetime.first) * b.bytes for b in plan.buffers
    ) / (steps * plan.arena_bytes)
    assert area / (width * height) == pytest.approx(wanted, abs=0.02)
    assert f"{plan.arena_bytes} bytes" in text
    assert f"node {plan.peak_step}" in text
    assert "://" not in text
    assert curve.find("polygon") is not None


def test_a_notebook_shows_a_graph():
    graph = planned().graph
    text = graph._repr_html_()
    tree = ElementTree.fromstring(text)
    assert f"{len(graph.nodes)}: " in text
    assert len(list(tree.iter("svg"))) == 1
    assert g.plan(outputs=[g.input("x", (4,))])._repr_html_().startswith("<div>")
    assert g.plan(outputs=[g.input("x", (4,))]).graph._repr_html_().startswith("<div>")
