"""The page of a plan for torch, the report as JSON, and the trade-off as table and picture."""

import webbrowser
from collections import Counter
from itertools import accumulate

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from view.reading import content  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError  # noqa: E402


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)

    def forward(self, x):
        return torch.tanh(nn.functional.dropout(self.norm(self.linear(x)), 0.2)) + x


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(4))
        self.unread = nn.Parameter(torch.ones(5))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x.square().sum()


@pytest.fixture(scope="module")
def step():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(25))], momentum=0.9)
    x = torch.randn(64, 32)
    return graphc.torch.plan(Parts(), (x,), max_extra_time=10.0, reserve=optimizer, accumulate=True)


@pytest.fixture(scope="module")
def page(step, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "step.html"
    assert step.report.view(path) == str(path)
    return content(path.read_text())


@pytest.fixture
def plan(page):
    (found,) = page["plans"]
    return found


def of_kind(page, plan, kind):
    number = page["kinds"].index(kind)
    return [at for at, each in enumerate(plan["buffers"]["kind"]) if each == number]


def test_live_bytes_are_those_of_the_buffers_and_of_the_plan(step, plan):
    buffers = plan["buffers"]
    change = Counter()
    for size, first, last in zip(buffers["bytes"], buffers["first"], buffers["last"], strict=True):
        change[first] += size
        change[last] -= size
    levels = list(accumulate(change[at] for at in range(len(plan["live"]))))
    assert levels == plan["live"]
    assert max(levels) == plan["live_bytes"] == step.report.peak_bytes


def test_no_two_buffers_overlap(plan):
    buffers = plan["buffers"]
    rows = list(zip(*(buffers[name] for name in ("offset", "bytes", "first", "last")), strict=True))
    for at, (offset, size, first, last) in enumerate(rows):
        assert offset + size <= plan["arena_bytes"]
        for other_offset, other_size, other_first, other_last in rows[:at]:
            is_beside = first >= other_last or other_first >= last
            assert is_beside or offset >= other_offset + other_size or other_offset >= offset + size


def test_what_is_there_before_the_step_has_the_users_names(page, plan):
    module, values = Parts(), plan["values"]
    sizes = {
        name: plan["buffers"]["bytes"][buffer]
        for name, buffer in zip(values["name"], values["buffer"], strict=True)
    }
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    wanted = {f"@{name.replace('.', '/')}": t.nbytes for name, t in named.items()}
    wanted["@other parameters and buffers"] = wanted.pop("@unread")
    wanted["@args[0]"] = 4 * 64 * 32
    wanted["@gradients of earlier steps"] = sum(t.nbytes for t in module.parameters())
    wanted["@reserve"] = 100
    assert {name: sizes[name] for name in sizes if name.startswith("@")} == wanted
    (reserve,) = of_kind(page, plan, "optimizer")
    assert plan["buffers"]["bytes"][reserve] == 100


def test_nodes_are_those_of_both_graphs_with_module_paths_and_repeats(step, page, plan):
    scopes, ops = (
        [plan["texts"][number] for number in plan["nodes"][what]] for what in ("scope", "op")
    )
    boundary = ops.index("boundary")
    phases = [page["phases"][number] for number in plan["nodes"]["phase"]]
    assert set(phases[: boundary + 1]) == {"forward"}
    assert set(phases[boundary + 1 :]) == {"mirror", "gradient"}
    assert scopes[ops.index("native_dropout")] == "parts/0"
    assert scopes[ops.index("addmm")] == "parts/0/linear"
    assert phases.count("mirror") == sum(each.times for each in step.report.repeated)
    values = plan["values"]
    copies = [(at, first) for at, first in enumerate(values["copy_of"]) if first >= 0]
    assert copies
    for copy, first in copies:
        node, original = values["node"][copy], values["node"][first]
        assert phases[node] == "mirror"
        assert ops[node].split(".")[0].startswith(ops[original].split(".")[0])
        assert values["type"][copy] == values["type"][first]


def test_copies_of_gradients_have_a_place_and_a_time(tmp_path):
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(8, 8).t())

        def forward(self, x):
            return (x * self.w).sum()

    report = graphc.torch.plan(nn.Sequential(Turned()), (torch.randn(8, 8),), "knee").report
    report.view(tmp_path / "step.html")
    (plan,) = content((tmp_path / "step.html").read_text())["plans"]
    (copied,) = (at for at, op in enumerate(plan["nodes"]["op"]) if plan["texts"][op] == "clone")
    assert plan["texts"][plan["nodes"]["scope"][copied]] == "0"
    assert plan["nodes"]["seconds"][copied] > 0


def test_kinds_of_buffers(page, plan):
    """Results of the forward pass are saved from the boundary on, random states for repeats."""
    ops = [plan["texts"][number] for number in plan["nodes"]["op"]]
    boundary, buffers = ops.index("boundary"), plan["buffers"]
    saved = page["kinds"].index("saved")
    crossing = [at for at, turns in buffers["turns"].items() if [boundary, saved] in turns]
    assert crossing
    assert all(buffers["first"][int(at)] < boundary < buffers["last"][int(at)] for at in crossing)
    states = of_kind(page, plan, "random state")
    assert {buffers["bytes"][at] for at in states} == {torch.get_rng_state().nbytes}
    for kind in "activation", "repeated", "gradient", "workspace":
        assert of_kind(page, plan, kind)
    for at in of_kind(page, plan, "workspace"):
        assert buffers["last"][at] == buffers["first"][at] + 1


def test_readers_are_behind_what_they_read(plan):
    values, readers = plan["values"], iter(plan["values"]["readers"])
    for at, count in enumerate(values["reader_counts"]):
        for _ in range(count):
            reader = next(readers)
            assert values["node"][at] < reader
            assert reader < plan["buffers"]["last"][values["buffer"][at]]


def test_without_a_path_a_browser_opens_it(step, tmp_path, monkeypatch):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", seen.append)
    assert step.report.view() == "plan.html"
    assert seen == [(tmp_path / "plan.html").as_uri()]
    with pytest.raises(OptionError, match="cannot write"):
        step.report.view(tmp_path / "missing" / "plan.html")


def test_the_report_as_json(step):
    found = step.report.json
    assert found["peak_bytes"] == step.report.peak_bytes <= found["plain_bytes"]
    assert found["bound_bytes"] <= found["least_bytes"] <= found["peak_bytes"]
    assert found["held_bytes"]["reserve"] == 100
    made = sum(each["bytes"] for each in found["bytes_by_module"])
    assert made + sum(found["held_bytes"].values()) <= found["peak_bytes"]
    assert found["frontier"]["points"][-1]["peak_bytes"] == found["least_bytes"]
    assert found["extra_time_bound"] <= found["extra_time_fraction"]


def test_the_frontier_as_a_table_and_a_picture(step, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    points = step.report.frontier
    assert points[0].peak_bytes == step.report.plain_bytes
    assert len(points) == len(list(points)) == len(points.json["points"])
    lines = str(points).splitlines()
    assert len(lines) == len(points) + 2
    assert "100.0%" in lines[1]
    points.plot(tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")
    for path in tmp_path / "frontier.svg", None:
        with pytest.raises(OptionError, match=r"ends in \.png"):
            points.plot(path)
