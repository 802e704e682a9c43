"""What would lower the arena: told with the plan, true to plans made anew, and within bounds."""

import json
import re

import pytest
from cli.running import once, parsed, run, unfolded
from view.reading import content

from graphc.byte_sizes import format_bytes
from graphc.cli import advice, view
from graphc.cli.advice import HEADING, MOST
from graphc.cli.plans import plan_from_arguments

WIDE = ["mlp", "layers=6", "hidden=16", "inputs=8", "batch=256"]
GPT2 = ["gpt2", "layers=2", "width=16", "heads=2", "seq_len=64", "batch=4", "vocab=11"]

ROW = r"^ *(\S+ \S+), (\S+ \S+) less(?:, ([+-][\d.]+)% time)?: (.*)$"


def rows(text):
    """(arena, saved, added time in %, how) of each change that is told."""
    return re.findall(ROW, unfolded(text), re.MULTILINE)


def arguments_of(model, how):
    """The command line that makes a change."""
    if how.startswith("batch="):
        others = [entry for entry in model if not entry.startswith("batch=")]
        return [*others, how.split(",")[0]]
    return [*model, *how.split()]


@pytest.mark.parametrize(
    "model", [pytest.param(WIDE, id="mlp"), pytest.param(GPT2, id="gpt2", marks=pytest.mark.slow)]
)
def test_a_plan_ends_with_the_three_changes_that_save_most(capsys, model):
    code, out, _ = once("plan", *model)
    assert code == 0
    told = out.split(HEADING)[1]
    assert len(rows(told)) == MOST == 3
    whole = json.loads(run(capsys, "plan", *model, "--json")[1])
    sizes = []
    for arena, saved, time, how in rows(told):
        other = json.loads(run(capsys, "plan", *arguments_of(model, how), "--json")[1])
        assert arena == format_bytes(other["arena_bytes"])
        assert saved == format_bytes(whole["arena_bytes"] - other["arena_bytes"])
        if not how.startswith("batch="):
            added = other["extra_time_fraction"] - whole["extra_time_fraction"]
            assert float(time or 0) == pytest.approx(100 * added, abs=0.06)
        sizes.append(other["arena_bytes"])
    assert sizes == sorted(sizes)
    explained = rows(run(capsys, "explain", *model, "--peak")[1])
    assert explained[:MOST] == rows(told)


def test_changes_that_lower_the_arena_fit_80_columns():
    for model in (WIDE, ["mlp", "layers=3", "hidden=16", "batch=4"]):
        told = once("plan", *model)[1].rstrip().split("\n\n")[-1]
        assert "lower" in told
        assert max(map(len, told.splitlines())) <= 80


@pytest.mark.slow
def test_the_page_tells_what_would_lower_each_plan(capsys, tmp_path):
    path = tmp_path / "plan.html"
    names = "none,packed,cheap,sublinear"
    assert run(capsys, "view", *WIDE, "--strategies", names, "-o", str(path))[0] == 0
    found = content(path.read_text())["plans"]
    for model in found:
        name = model["label"]
        strategy = ["--allocate" if name in ("none", "packed") else "--recompute", name]
        told = rows(run(capsys, "plan", *WIDE, *strategy)[1].split(HEADING)[1])
        assert rows("\n".join(model["lowering"])) == told != []


@pytest.mark.slow
def test_the_page_opens_on_the_tab_with_the_smallest_arena(capsys, tmp_path):
    path = tmp_path / "plan.html"
    run(capsys, "view", *WIDE, "--strategies", "none,sublinear,packed", "-o", str(path))
    found = content(path.read_text())
    sizes = [model["arena_bytes"] for model in found["plans"]]
    assert found["opened"] == sizes.index(min(sizes)) == 1
    run(capsys, "view", *WIDE, "-o", str(path))
    assert content(path.read_text())["opened"] == 0


def test_a_plan_from_a_file_has_no_model_to_change(capsys, tmp_path):
    saved, page = str(tmp_path / "plan.json"), tmp_path / "plan.html"
    run(capsys, "plan", *WIDE, "--json", "--output", saved)
    assert "lower" not in run(capsys, "plan", saved)[1]
    run(capsys, "view", saved, "-o", str(page))
    assert content(page.read_text())["plans"][0]["lowering"] == []


@pytest.mark.slow
def test_a_large_network_is_planned_in_few_other_ways(capsys, monkeypatch):
    """By numbers of nodes, not by time: the same input tells the same."""
    made, make = [], advice.Alternatives._plan

    def counted(self, how, *others):
        made.append(how)
        return make(self, how, *others)

    monkeypatch.setattr(advice.Alternatives, "_plan", counted)
    nodes = json.loads(run(capsys, "plan", *WIDE, "--json")[1])["nodes"]
    for work, tried in ((nodes * 2, 2), (nodes - 1, 0), (nodes * 20, 5)):
        made.clear()
        monkeypatch.setattr(advice, "WORK", work)
        monkeypatch.setattr(advice.Alternatives.__init__, "__defaults__", (work,))
        out = run(capsys, "plan", *WIDE)[1]
        assert len(made) == tried
        assert ("Not tried, as it takes longer: " in out) == (tried < 5)
        assert out == run(capsys, "plan", *WIDE)[1]
    made.clear()
    monkeypatch.setattr(advice.Alternatives.__init__, "__defaults__", (1,))
    assert "Not tried" not in run(capsys, "explain", *WIDE, "--peak")[1]
    assert len(made) == 5


def test_what_takes_longer_is_named_instead_of_tried(monkeypatch):
    options = parsed(monkeypatch, "plan", *WIDE)
    plan = plan_from_arguments(options)
    nodes = len(plan.graph.nodes)
    found = advice.Alternatives(options, work=2 * nodes).lowering(plan)
    assert found.tried == ["batch=128, half of it", "--recompute sublinear"]
    assert "--max-extra-flops 0.33" in found.left_out
    told = found.told()[-1]
    assert told.startswith("Not tried, as it takes longer: ")
    assert all(how in told for how in found.left_out)
    assert advice.Alternatives(options, work=None).lowering(plan).left_out == []


def test_an_alternative_that_cannot_be_planned_is_left_out(capsys, tmp_path):
    """A plan is printed although half the batch of this model is refused."""
    path = tmp_path / "net.py"
    path.write_text(
        "import graphc\n\n"
        "def build(batch=6):\n"
        "    if batch < 6:\n"
        "        raise graphc.errors.OptionError('too few')\n"
        "    h = graphc.input('x', (batch, 64))\n"
        "    for layer in range(6):\n"
        "        with graphc.scope(f'layer{layer}'):\n"
        "            h = graphc.relu(graphc.linear(h, 64))\n"
        "    return graphc.mean(h)\n"
    )
    code, out, err = run(capsys, "plan", f"{path}:build")
    assert (code, err) == (0, "")
    assert "peak at " in out
    assert "batch=3" not in out


def test_tabs_of_a_page_are_not_planned_twice(capsys, tmp_path, monkeypatch):
    made, make = [], view.plan_from_arguments

    def counted(options, **strategy):
        key = {**vars(options), **strategy}
        names = ("settings", "allocate", "recompute", "max_extra_flops")
        made.append(tuple(str(key[name]) for name in names))
        return make(options, **strategy)

    for module in (advice, view):
        monkeypatch.setattr(module, "plan_from_arguments", counted)
    names = "packed,cheap,sublinear,recursive"
    run(capsys, "view", *WIDE, "--strategies", names, "-o", str(tmp_path / "plan.html"))
    assert len(made) == len(set(made))
    assert len(made) >= 4 + 1
