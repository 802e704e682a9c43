import json
import re
import subprocess
import sys

import pytest
from cli.running import run

from graphc.plans.memory_plan import ALLOCATE

SMALL = ["layers=3", "hidden=16", "inputs=8", "batch=4"]
KEYS = ["model", "recompute", "allocate", "nodes", "forward_nodes", "arena_bytes", "state_bytes",
        "workspace_bytes", "feature_map_bytes", "live_bytes", "bound_bytes", "recomputed_nodes",
        "extra_flops_fraction", "extra_time_fraction", "planning_seconds",
        "extra_time_bound", "settings", "device", "alignment", "goal", "peak_node",
        "bytes_by_kind", "arena_by_strategy", "memory_bytes", "usable_bytes", "fits"]  # fmt: skip
IDENTITY = ["arguments", "options", "budget_bytes"]


def test_plan_json_has_the_stated_keys(capsys):
    code, out, _ = run(capsys, "plan", "mlp", *SMALL, "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == KEYS + IDENTITY
    assert (found["model"], found["allocate"], found["recompute"]) == ("mlp", "packed", "none")
    assert found["state_bytes"] <= found["live_bytes"] <= found["arena_bytes"]
    assert found["bound_bytes"] is None


def test_plan_text_is_the_same_bytes_every_time(capsys):
    outputs = {run(capsys, "plan", "mlp", *SMALL, "--text")[1] for _ in range(2)}
    assert len(outputs) == 1
    (text,) = outputs
    for part in ("arena by strategy", "bytes by kind", "over %", "state @", "peak at node"):
        assert part in text


def test_plan_text_golden(capsys, golden):
    out = run(capsys, "plan", "mlp", *SMALL, "--text", "--optimizer", "adam")[1]
    fits, text = out.split("\n", 1)
    assert fits.startswith("fits this machine: 24.25 KiB of ")
    golden("plan-mlp.txt", text)


def test_a_plan_for_a_gpu_shows_its_modelled_step(capsys):
    shown = ("plan", "mlp", *SMALL, "--optimizer", "none", "--device", "h200")
    code, out, _ = run(capsys, *shown)
    assert code == 0
    calls, milliseconds = re.search(
        r"Modelled step on the h200, in ([\d,]+) calls: ([\d.]+) ms", out
    ).groups()
    assert int(calls) > 0
    assert float(milliseconds) > 0
    assert re.search(r"^ +[\d.]+ ms  linear, \d+ nodes$", out, re.MULTILINE)


def test_plan_of_a_network_far_larger_than_this_machine(capsys):
    code, out, _ = run(capsys, "plan", "mlp", "layers=14", "hidden=262144", "batch=65536", "--json")
    assert code == 0
    assert json.loads(out)["arena_bytes"] > 3 * 2**40


def test_mirror_recomputes_and_none_does_not(capsys):
    none, mirror = (
        json.loads(run(capsys, "plan", "mlp", "layers=16", "--recompute", r, "--json")[1])
        for r in ("none", "mirror")
    )
    assert none["recomputed_nodes"] == 0 < mirror["recomputed_nodes"]
    assert none["extra_flops_fraction"] == 0 < mirror["extra_flops_fraction"] < 0.34
    assert mirror["feature_map_bytes"] < none["feature_map_bytes"]


def test_inference_plan(capsys):
    found = json.loads(run(capsys, "plan", "mlp", *SMALL, "--optimizer", "none", "--json")[1])
    assert found["nodes"] == found["forward_nodes"]


def test_compare_is_a_list_of_plan_objects(capsys):
    code, out, _ = run(capsys, "compare", "mlp", *SMALL, "--kernels", "numpy", "--json")
    plans = json.loads(out)
    assert code == 0
    assert [(found["recompute"], found["allocate"]) for found in plans] == [
        *(("none", allocate) for allocate in ALLOCATE),
        *((policy, "packed") for policy in ("cheap", "sublinear", "recursive", "optimal")),
    ]
    assert all(list(found) == KEYS + IDENTITY for found in plans)
    sizes = [found["arena_bytes"] for found in plans if found["allocate"] != "coloring"]
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert plans[-1]["extra_flops_fraction"] <= 0.33
    table = run(capsys, "compare", "mlp", *SMALL)[1]
    assert all(name in table for name in (*ALLOCATE, "measure"))
    assert "speed" not in table


def test_compare_shows_what_streams_gain(capsys):
    small = ["layers=2", "width=6", "rows=9", "words=3", "batch=4", "--budget", "1MiB"]
    table = run(capsys, "compare", "two_tower", *small, "--streams", "4")[1]
    assert "speed" in table
    (code, out, _) = run(capsys, "plan", "two_tower", *small, "--streams", "4", "--json")
    found = json.loads(out)
    gained = found["one_stream_seconds"] / found["step_seconds"]
    assert code == 0
    assert gained > 1.5
    (row,) = (line for line in table.splitlines() if line.startswith("budget"))
    assert row.endswith(f"{gained:.2f}x")


def test_compare_says_what_is_too_large_to_color(capsys, monkeypatch):
    monkeypatch.setattr("graphc.memory.coloring.MOST_COLORED", 2)
    out = run(capsys, "compare", "mlp", *SMALL)[1]
    assert out.splitlines()[-1] == "coloring: no row, as it is for at most 2,000 values"
    assert "none       coloring" not in out


def test_a_model_from_a_file(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "import graphc as g\n"
        "def build(width=8):\n"
        "    return g.mean(g.tanh(g.linear(g.input('x', (2, 3)), width)))\n"
        "nothing = 3\n"
        "def wrong(): return 3\n"
    )
    code, out, _ = run(capsys, "plan", f"{tmp_path}/net.py:build", "width=5", "--json")
    assert code == 0
    assert json.loads(out)["forward_nodes"] == 3
    for name in ("nothing", "absent", "wrong"):
        code, _, err = run(capsys, "plan", f"{tmp_path}/net.py:{name}")
        assert code == 2
        assert err.startswith("graphc: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "resnet999"], "unknown model 'resnet999'; choose one of: bert, "),
        (["plan", "gone.py:f"], "there is no file"),
        (["plan", "mlp", "depth=3"], "no setting 'depth'; it takes layers"),
        (["plan", "mlp", "layers"], "key=value"),
        (["plan", "mlp", "layers=x"], "integer >= 1"),
        (["plan", "mlp", "layers=0"], "integer >= 1"),
        (["plan", "mlp", "--allocate", "best"], "unknown allocate"),
        (["plan", "mlp", "--recompute", "best"], "unknown recompute"),
        (["train", "digits", "depth=3"], "it takes model, layers"),
        (["train", "digits", "model=rnn"], "unknown digits: model 'rnn'; choose one of: mlp, conv"),
        (["train", "digits", "--optimizer=sgd", "--schedule", "up"], "unknown schedule 'up'"),
        (["train", "digits", "--precision", "int8"], "unknown precision 'int8'"),
        (["train", "digits", "--accumulate", "0"], "accumulate must be an integer"),
        (["train", "digits", "--resume", "gone"], "there is no file 'gone'"),
        (["train", "text", "--file", "gone.txt"], "cannot read the text 'gone.txt'"),
        (["train", "text", "--steps", "0"], "--steps"),
        (["train", "digits", "--save", "/"], "cannot save to '/': Is a directory"),
        (["plan", "mlp", "--warmup", "-5"], "warmup must be an integer of at least 0"),
        (["plan", "mlp", "--steps", "0"], "--steps must be an integer"),
        (["plan", "mlp", "--optimizer", "none", "--schedule", "up"], "unknown schedule 'up'"),
        (["plan", "mobilenet_v2", "width=-1"], "width must be a number above 0"),
        (["plan", "resnet", "units=3"], "units must be a list such as"),
        (["plan", "gpt2", "layers=two"], "layers must be an integer"),
        (["plan", "gpt2", "drop=high"], "drop must be a number"),
        (["plan", "mlp", "--optimizer", "none", "--clip-norm", "1"], "give an optimizer"),
        (["train", "digits", "batch=9999"], "must be between"),
        (["train", "digits", "--epochs", "0"], "--epochs"),
    ],
)
def test_mistakes_exit_with_2_and_a_message(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_dump_writes_every_stage(capsys, tmp_path):
    run(capsys, "plan", "mlp", *SMALL, "--dump", str(tmp_path))
    assert (tmp_path / "00-forward.txt").read_text().startswith("graph {")
    assert (tmp_path / "15-plan.txt").is_file()
    assert len(list(tmp_path.iterdir())) == 17


def test_ops_lists_what_gradients_read(capsys):
    found = json.loads(run(capsys, "ops", "--json")[1])
    assert found["relu"]["gradient"] == {"x": ["dy", "y"]}
    assert found["adam_update"]["overwrite"]["w_new"] == ["w"]
    assert "relu" in run(capsys, "ops")[1]


def test_python_m_graphc_exits_with_the_code_of_the_command():
    wrong = subprocess.run([sys.executable, "-m", "graphc"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("graphc: ")


def test_a_closed_pipe_is_no_error():
    """The printout is larger than what a pipe holds."""
    done = subprocess.run(
        f"{sys.executable} -m graphc plan mlp layers=100 --text --keep-order | head -1",
        shell=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("fits this machine: ")
    assert done.stderr == ""


DEEP = ("layers=20", "hidden=64", "inputs=64", "batch=512")


def test_budgets_on_the_command_line(capsys):
    plain = json.loads(run(capsys, "plan", "mlp", *DEEP, "--json")[1])
    budget = plain["arena_bytes"] * 3 // 4
    code, out, err = run(capsys, "plan", "mlp", *DEEP, "--budget", str(budget), "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["recompute"] == "optimal"
    assert found["bound_bytes"] <= found["arena_bytes"] <= budget
    assert 0 < found["extra_time_bound"] <= found["extra_time_fraction"]
    text = run(capsys, "plan", "mlp", *SMALL, "--feature-map-budget", "1GiB")[1]
    assert "planned for         paper's measure of at most 1.00 GiB" in text
    assert "at most 20.0% more flops" in run(capsys, "plan", "mlp", "--max-extra-flops", "0.2")[1]
    assert "knee of the curve" in run(capsys, "plan", "mlp", *SMALL, "--recompute", "optimal")[1]


@pytest.mark.slow
def test_the_frontier_runs_from_the_fewest_bytes_to_no_recomputation(capsys):
    code, out, err = run(capsys, "plan", "mlp", *DEEP, "--frontier", "--json")
    assert code == 0, err
    points = json.loads(out)["frontier"]
    assert len(points) > 5
    plain = json.loads(run(capsys, "plan", "mlp", *DEEP, "--json")[1])
    assert points[-1]["arena_bytes"] == plain["arena_bytes"]
    assert points[-1]["extra_time_fraction"] == 0
    bytes_ = [point["arena_bytes"] for point in points]
    seconds = [point["extra_time_fraction"] for point in points]
    assert bytes_ == sorted(set(bytes_))
    assert seconds == sorted(set(seconds), reverse=True)
    assert "extra time" in run(capsys, "plan", "mlp", *SMALL, "--frontier")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "lots"), "budget must be a size such as 7GiB, 500MB or 123456, got 'lots'"),
        (("--budget", "1GiB", "--max-extra-flops", "0.3"), "give only one of budget and max_extra"),
        (("--max-extra-flops", "-1"), "of at least 0, such as 0.33, got -1.0"),
        (("--budget", "1GiB", "--recompute", "cheap"), "omit recompute='cheap'"),
        (("--budget", "1GiB", "--optimizer", "none"), "give an optimizer"),
        (("--budget", "1KiB"), "Raise the budget"),
        (("--frontier", "--budget", "1GiB"), "leave out --budget"),
        (("--frontier", "--optimizer", "none"), "--frontier needs a training step"),
    ],
)
def test_mistaken_budgets(capsys, arguments, message):
    code, _, err = run(capsys, "plan", "mlp", *arguments)
    assert code == (3 if message == "Raise the budget" else 2)
    assert message in err


def test_a_plan_is_written_and_printed_again(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    wanted = run(capsys, "plan", "mlp", *SMALL, "--recompute", "cheap", "--text", "--output", path)
    assert wanted[0] == 0
    printed = run(capsys, "plan", path, "--text")
    assert printed[0] == 0
    assert wanted[1].startswith(printed[1])
    code, out, _ = run(capsys, "plan", path, "--json")
    assert code == 0
    assert list(json.loads(out)) == KEYS
    again = str(tmp_path / "again.json")
    assert run(capsys, "plan", path, "--output", again)[0] == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_mistakes_with_plan_files(capsys, tmp_path):
    path = tmp_path / "plan.json"
    run(capsys, "plan", "mlp", *SMALL, "--json", "--output", str(path))
    content = json.loads(path.read_text())
    weight = content["buffers"][content["placements"]["@layer1/weight"]["buffer"]]
    content["buffers"][content["placements"]["%0"]["buffer"]]["offset"] = weight["offset"]
    (tmp_path / "moved.json").write_text(json.dumps(content))
    (tmp_path / "other.json").write_text("{}")
    for arguments, message in (
        ([str(tmp_path / "moved.json")], "would overwrite the state @layer1/weight"),
        ([str(tmp_path / "other.json")], "format: expected 'graphc.plan'"),
        ([str(tmp_path / "gone.json")], "there is no file"),
        ([str(path), "--budget", "1GiB"], "is a finished plan; leave out --budget"),
        ([str(path), "--frontier"], "is a finished plan; leave out --frontier"),
        ([str(path), "--optimizer", "sgd"], "is a finished plan; leave out --optimizer"),
        ([str(path), "--keep-order"], "is a finished plan; leave out --keep-order"),
        ([str(path), "batch=3"], "is a finished plan; leave out batch=3"),
        (["mlp", "--output", "/no/folder/p.json"], "cannot save to"),
        (["mlp", "--frontier", "--output", str(path)], "must end in .png, since"),
        (["mlp", "--output", str(tmp_path / "p.png")], "must end in .json, since"),
    ):
        code, out, err = run(capsys, "plan", *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert err.startswith("graphc: ")


@pytest.mark.parametrize(
    ("options", "fused", "told"),
    [
        ([], True, ""),
        (["--no-fuse"], False, "fuse=False"),
        (["--kernels", "numpy"], False, "kernels=numpy"),
        (["--kernels", "numpy", "--fuse"], True, "fuse=True"),
    ],
)
def test_plans_of_groups(capsys, tmp_path, options, fused, told):
    path = str(tmp_path / "plan.json")
    (tmp_path / "net.py").write_text(
        "import graphc as g\n"
        "def build():\n"
        "    h = g.linear(g.input('x', (2, 3)), 4)\n"
        "    return g.mean(g.sigmoid(h) * g.linear(h, 4))\n"
    )
    model = f"{tmp_path}/net.py:build"
    code, out, _ = run(capsys, "plan", model, *options, "--text", "--output", path)
    assert code == 0
    assert ("sigmoid+mul" in out) == fused
    assert told in out if told else "fuse=" not in out
    assert out.startswith(run(capsys, "plan", path, "--text")[1])
    code, _, error = run(capsys, "plan", path, "--fuse")
    assert code != 0
    assert "leave out --fuse" in error


def test_plan_and_compare_agree_on_every_strategy_or_say_that_the_order_differs(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "import graphc as g\n"
        "def build():\n"
        "    a = g.linear(g.input('x', (64, 8)), 64, name='a')\n"
        "    b = g.linear(a, 64, name='b')\n"
        "    return g.mean(g.linear(a, 8, name='c')) + g.mean(b * b)\n"
    )
    model = f"{tmp_path}/net.py:build"
    for kept in ((), ("--keep-order",)):
        rows = json.loads(run(capsys, "compare", model, *kept, "--json")[1])
        by_strategy = {r["allocate"]: r["arena_bytes"] for r in rows if r["recompute"] == "none"}
        printed = json.loads(run(capsys, "plan", model, *kept, "--json")[1])["arena_by_strategy"]
        agree = printed.items() <= by_strategy.items()
        table, plan = (
            " ".join(run(capsys, name, model, *kept)[1].split()) for name in ("compare", "plan")
        )
        assert agree == bool(kept)
        assert ("order: packed plans reorder nodes" in table) == (not kept)
        assert "in this plan's node order" in plan
