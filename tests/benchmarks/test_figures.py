"""The figures' numbers are what `graphc.plan` says, and each draws, the same bytes every time."""

import copy
import functools
import json

import pytest
from models.test_zoo import quick_and_slow

import graphc
from graphc.models import MODELS

pytest.importorskip("matplotlib")

import charts
import figures

SOME = [p for p in figures.POLICIES if p.label in ("sharing", "cheap", "sublinear")]
PNG = b"\x89PNG\r\n\x1a\n"


@functools.cache
def tiny_figure(number):
    if number == 5:
        return figures.figure5(SOME, depths=(50,), image=32, batch=2)
    if number == 6:
        return figures.figure6(SOME, lengths=(2, 4), hidden=8, batch=2)
    return figures.figure7(SOME, depths=(11, 20), image=8, batch=2, steps=2)


@pytest.mark.parametrize("number", quick_and_slow([5, 6, 7], [5, 6]))
def test_numbers_are_those_of_plans_and_are_drawn(number, tmp_path, capsys):
    figures.publish(tiny_figure(number), tmp_path)
    numbers, picture = figures.paths(number, tmp_path)
    content = json.loads(numbers.read_text())
    options = {policy["label"]: policy["options"] for policy in content["policies"]}
    sizes = {row[content["variable"]] for row in content["rows"]}
    assert len(content["rows"]) == len(options) * len(sizes)
    assert {"date", "machine", "versions", "commit"} <= set(content)
    for row in content["rows"]:
        size = {content["variable"]: row[content["variable"]]}
        loss = MODELS[content["model"]](**size, **content["settings"])
        given = row.get("options", options[row["policy"]])
        plan = graphc.plan(loss, optimizer=graphc.optim.SGD(), **given)
        assert plan.feature_map_bytes == row["feature_map_bytes"]
        assert plan.arena_bytes == row["arena_bytes"]
        assert plan.recomputation.extra_flops_fraction == row["extra_flops_fraction"]
    printed = capsys.readouterr().out
    first_cells = [line.split()[0] for line in printed.splitlines() if line.strip()]
    assert [cell for cell in first_cells if cell in options] == list(options)

    drawn = picture.read_bytes()
    assert drawn.startswith(PNG)
    picture.unlink()
    figures.main(["--redraw", "--figure", str(number), "--output", str(tmp_path)])
    assert picture.read_bytes() == drawn


@pytest.mark.slow
def test_the_optimal_of_figure_7_is_chosen_within_a_third_of_a_steps_time():
    """As many bytes less as that allows, though it takes more flops or fewer than a third."""
    optimal = [policy for policy in figures.POLICIES if policy.label == "optimal"]
    (_, row) = figures.figure7(optimal, depths=(11,), image=16, batch=2, steps=1)["rows"]
    assert row["policy"] == "optimal"
    assert 0 < row["extra_time_fraction"] <= 1 / 3
    loss = MODELS["preact_resnet"](depth=11, image=16, batch=2)
    points = graphc.frontier(loss, optimizer=graphc.optim.SGD())
    too_slow = [point for point in points if point.extra_time_fraction > 1 / 3]
    assert row["arena_bytes"] <= row["options"]["budget"]
    assert all(point.arena_bytes < row["arena_bytes"] for point in too_slow)
    plan = graphc.plan(loss, optimizer=graphc.optim.SGD(), **row["options"])
    assert plan.recomputation.extra_time_fraction == row["extra_time_fraction"]


def test_step_times_compare_with_the_baseline_of_the_same_run():
    content = tiny_figure(7)
    assert [policy["label"] for policy in content["policies"]] == ["packed", "cheap", "sublinear"]
    for row in content["rows"]:
        assert 0 < row["fastest_seconds"] <= row["median_seconds"] <= row["slowest_seconds"]
        assert row["ratio"] == 1 or row["policy"] != content["baseline"]


def test_drawing_depends_on_the_content(tmp_path):
    content = copy.deepcopy(tiny_figure(7))
    charts.draw(content, tmp_path / "one.png")
    content["rows"][-1]["median_seconds"] *= 2
    content["rows"][-1]["ratio"] *= 2
    charts.draw(content, tmp_path / "other.png")
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "other.png").read_bytes()


def test_every_policy_has_its_own_style_and_every_comparison_a_policy():
    labels = [policy.label for policy in figures.POLICIES]
    assert list(charts.STYLES) == labels
    assert len(set(charts.STYLES.values())) == len(labels)
    assert set(figures.BESIDE.values()) <= set(labels)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([0.1, 0.9], [0.1, 0.9]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.9, 0.5, 0.52], [0.9, 0.46, 0.56]),
        ([0.5, 0.5, 0.62], [0.44, 0.54, 0.64]),
    ],
)
def test_spread_labels_keep_their_order_and_distance(places, expected):
    assert charts.spread(places, 0.1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("size", "label"),
    [(12, "12 B"), (834 * 2**20, "834 MiB"), (49836113920, "46.4 GiB"), (1 << 30, "1 GiB")],
)
def test_bytes_label(size, label):
    assert charts.bytes_label(size) == label
