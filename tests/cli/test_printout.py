"""What commands print: 80 columns, the answer last, nodes where asked for, one name a thing."""

import importlib
import inspect
import io
import json
import re
from types import SimpleNamespace

import pytest
from cli.running import run
from rich.console import Console

import graphc as g
from graphc.byte_sizes import format_bytes, parse_bytes
from graphc.cli.compare import Row, _table
from graphc.models import MODELS, mlp
from graphc.plans.printout import format_plan

SMALL = ["layers=3", "hidden=16", "inputs=8", "batch=4"]
SIZES = {"layers": 3, "hidden": 16, "inputs": 8, "batch": 4}
NODE_LINE = re.compile(r"^ +\d+  \w+\(", re.MULTILINE)

DEEP_SCOPES = (
    "import graphc as g\n"
    "def build():\n"
    "    h = g.input('x', (64, 8))\n"
    "    for name in ('encoder' * 9, 'decoder' * 9):\n"
    "        with g.scope(name), g.scope(name):\n"
    "            h = g.tanh(g.linear(h, 32))\n"
    "    return g.mean(h)\n"
)


def planned(**options):
    return g.plan(mlp(**SIZES), optimizer=g.optim.Adam(), **options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["mlp", *SMALL, "--optimizer", "adam", "--clip-norm", "1", "--schedule", "cosine"],
        ["mlp", "--budget", "4MiB"],
        pytest.param(
            ["mlp", *SMALL, "--recompute", "cheap", "--device", "rtx-4090", "--accumulate", "3"],
            marks=pytest.mark.slow,
        ),
        ["deep", "--optimizer", "none"],
        ["mlp", *SMALL, "--frontier"],
    ],
)
def test_a_plan_is_printed_in_80_columns_without_its_nodes(capsys, tmp_path, arguments):
    if arguments[0] == "deep":
        (tmp_path / "net.py").write_text(DEEP_SCOPES)
        arguments = [f"{tmp_path}/net.py:build", *arguments[1:]]
    code, out, err = run(capsys, "plan", *arguments)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert not NODE_LINE.search(out)


@pytest.mark.parametrize("asked", ["--peak", "--kept", "--scopes", "%3"])
def test_an_explanation_is_printed_in_80_columns_with_every_word(capsys, asked):
    given = ("explain", "mlp", "layers=3", "batch=256", asked)
    printed = run(capsys, *given)[1]
    assert max(map(len, printed.splitlines())) <= 80
    (part,) = [each for name, each in json.loads(run(capsys, *given, "--json")[1]).items()
               if name != "plan"]  # fmt: skip
    assert asked == "--scopes" or max(map(len, part["sentences"])) > 80
    told = printed.split("\n", 1)[1]
    assert told.split() == " ".join(part["sentences"]).split()


def test_with_text_the_list_of_nodes_comes_before_the_answer(capsys):
    plain, text = (run(capsys, "plan", "mlp", *SMALL, *more)[1] for more in ((), ("--text",)))
    count = json.loads(run(capsys, "plan", "mlp", *SMALL, "--json")[1])["nodes"]
    assert len(NODE_LINE.findall(text)) == count
    first, rest = plain.split("\n", 1)
    assert text.startswith(f"{first}\nnodes\n")
    assert text.endswith(rest)


def test_a_terminal_and_a_pipe_show_the_same_text(capsys, monkeypatch):
    piped = run(capsys, "plan", "mlp", *SMALL)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(capsys, "plan", "mlp", *SMALL)[1] == piped


def test_the_text_of_a_plan_lists_every_node():
    plan = planned()
    assert len(NODE_LINE.findall(plan.text())) == len(plan.graph.nodes)
    assert not NODE_LINE.search(format_plan(plan, nodes=False))


def test_a_node_is_no_step_and_a_measure_has_one_name():
    """The step of a printout is the training step; feature maps are a kind of buffers."""
    plan = planned(feature_map_budget="1GiB")
    text = format_plan(plan).replace("@counter/step", "")
    told = [line for line in text.splitlines() if re.search(r"\bsteps?\b", line)]
    assert len(told) == 1
    assert told[0].startswith("  step                Adam(")
    assert f"  paper's measure     {format_bytes(plan.feature_map_bytes)}\n" in text
    (kind,) = re.findall(r"^  feature map +(\S+ \S+)$", text, re.MULTILINE)
    assert kind == format_bytes(plan.bytes_by_kind["feature map"])
    assert f"peak at node {plan.peak_step} (" in text


def test_sizes_have_separators():
    plan = g.plan(mlp(), optimizer=g.optim.SGD())
    assert plan.arena_bytes > 10**6
    assert f"  arena               {plan.arena_bytes:,} bytes = " in plan.text()
    with pytest.raises(g.BudgetError) as caught:
        g.plan(mlp(), optimizer=g.optim.SGD(), budget="1KiB")
    error = caught.value
    assert "fits into 1,024 bytes = 1.00 KiB; the smallest plan" in str(error)
    assert f"plan found needs {error.least_bytes:,} bytes = " in str(error)
    assert f"the lower bound is {error.bound_bytes:,} bytes" in str(error)


def test_written_files_are_named(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    code, out, err = run(capsys, "plan", "mlp", *SMALL, "-o", path)
    assert (code, err) == (0, "")
    assert out.endswith(f"\nwritten to {path}\n")
    code, out, err = run(capsys, "plan", "mlp", *SMALL, "-o", path, "--json")
    assert json.loads(out)["model"] == "mlp"
    assert err == f"graphc: written to {path}\n"


def test_compare_has_rows_for_budgets_and_plan_files(capsys, tmp_path):
    path = str(tmp_path / "cheap.json")
    g.save_plan(planned(recompute="cheap"), path)
    arguments = ("compare", "mlp", *SMALL, path, "--budget", "1MiB", "--budget", "2MiB")
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert " ".join(out.splitlines()[1].split()) == "paper's extra extra planning"
    assert " ".join(out.splitlines()[2].split()) == (
        "plan allocate measure arena gap flops time seconds"
    )
    names = [line.split("  ")[0] for line in out.splitlines()[3:]]
    assert names[-3:] == ["budget 1MiB", "budget 2MiB", "cheap.json"]
    rows = json.loads(run(capsys, *arguments, "--json")[1])
    assert [row["budget_bytes"] for row in rows[-3:-1]] == [2**20, 2**21]
    assert rows[-1]["model"] == "cheap.json"
    for line, row in zip(out.splitlines()[3:], rows, strict=True):
        assert f" {format_bytes(row['arena_bytes'])} " in line
        assert f" {row['extra_time_fraction']:.1%} " in line
    code, out, _ = run(capsys, "compare", path, path, "--json")
    assert code == 0
    assert [row["recompute"] for row in json.loads(out)] == ["cheap", "cheap"]
    code, _, err = run(capsys, "compare", path, "--budget", "1MiB")
    assert code == 2
    assert "is a finished plan; leave out --budget" in err


def test_rows_of_files_with_one_name_and_with_long_names_are_told_apart(capsys, tmp_path):
    paths = []
    for folder, policy in (("a", "none"), ("b", "cheap")):
        (tmp_path / folder).mkdir()
        for name in ("plan", "a-name-of-more-than-twenty-letters"):
            paths.append(f"{tmp_path}/{folder}/{name}.json")
            g.save_plan(planned(recompute=policy), paths[-1])
    given = [*paths[:3]]
    rows = json.loads(run(capsys, "compare", *given, "--json")[1])
    long = "a-name-of-more-than-twenty-letters.json"
    assert [row["model"] for row in rows] == [paths[0], long, paths[2]]
    out = run(capsys, "compare", "mlp", *SMALL, *given)[1]
    assert out.startswith("fits this machine: 12 of 12; ")
    lines = out.splitlines()[3:]
    assert max(map(len, out.splitlines())) <= 80
    names = [line[:18].strip() for line in lines[9:]]
    assert "".join(names) == "".join([paths[0], long, paths[2]])
    assert sum(line[18:].strip() != "" for line in lines) == 12


@pytest.mark.parametrize("size", [1, 1023 * 2**20 + 5000, 1023 * 2**30])
def test_a_table_of_any_sizes_cuts_no_figure(size):
    again = SimpleNamespace(extra_flops_fraction=1.5, extra_time_fraction=1.5)
    plan = SimpleNamespace(
        allocate="inplace", recomputation=again, feature_map_bytes=size, arena_bytes=size,
        live_bytes=size, planning_seconds=1234.5, streams=SimpleNamespace(speedup=12.345),
        host_bytes=0,
    )  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    console.print(_table([Row("budget 123456789012345678B", plan)]))
    words = console.file.getvalue().split()
    assert {"inplace", "1234.50", "12.35x", *format_bytes(size).split()} <= set(words)


def test_printed_sizes_of_the_frontier_and_of_errors_are_budgets(capsys):
    model = ("plan", "mlp", "layers=6", "hidden=37", "batch=99")
    points = json.loads(run(capsys, *model, "--frontier", "--json")[1])["frontier"]
    lines = run(capsys, *model, "--frontier")[1].splitlines()[2:]
    for point, line in zip(points, lines, strict=True):
        number, unit, *_ = line.split()
        assert parse_bytes("budget", number + unit) >= point["arena_bytes"]
    code, _, err = run(capsys, *model, "--budget", "1KiB")
    (least,) = re.findall(r"smallest plan found needs [\d,]+ bytes = ([\d.]+) (\w+),", err)
    assert code == 3
    assert run(capsys, *model, "--budget", "".join(least))[0] == 0


def test_compare_prints_the_other_rows_if_nothing_fits_a_budget(capsys):
    code, out, err = run(capsys, "compare", "mlp", *SMALL, "--budget", "1KiB", "--budget", "1MiB")
    assert (code, err) == (3, "")
    assert re.search(r"\nbudget 1KiB +nothing fits *\n", out)
    assert re.search(r"\nbudget 1MiB +packed +\d", out)
    assert re.search(r"\nsublinear +packed +\d", out)
    assert re.search(r"\nbudget 1KiB: the smallest plan found needs [\d,]+ bytes = ", out)


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as left:
        run(capsys, "--version")
    assert left.value.code == 0
    assert capsys.readouterr().out == f"graphc {g.__version__}\n"


def test_models_are_listed_with_their_arguments_and_parameters(capsys):
    code, out, _ = run(capsys, "models", "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == list(MODELS)
    for name, model in found.items():
        parameters = inspect.signature(MODELS[name]).parameters
        assert set(model["arguments"]) == set(parameters)
        assert model["arguments"]["batch"] == parameters["batch"].default
        module = importlib.import_module(MODELS[name].__module__)
        assert module.__doc__
        assert model["doc"]
    trained = [state for state in planned().graph.states if state.trainable]
    small = sum(state.type.elements for state in trained)
    assert small == 8 * 16 + 16 + 2 * (16 * 16 + 16) + 16 * 10 + 10
    assert found["mlp"]["parameters"] == 784 * 256 + 3 * 256**2 + 256 * 10 + 4 * 256 + 10
    code, out, _ = run(capsys, "models")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    for name, model in found.items():
        assert f"{name} {model['parameters']:,} " in text
    assert "hidden=256 inputs=784" in text
