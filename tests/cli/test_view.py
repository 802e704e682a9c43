"""graphc view and graphc explain, and what compare and plan draw."""

import json
import pickle
import re

import pytest
from cli.running import run, unfolded
from view.reading import content

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.cli.advice import HEADING
from graphc.devices.device_memory import gpu_memory, machine_memory

WIDE = ["layers=8", "hidden=64", "inputs=8", "batch=512"]
SMALL = ["layers=3", "hidden=16", "inputs=8", "batch=4"]


def test_a_page_with_a_tab_a_strategy(capsys, tmp_path):
    path = tmp_path / "plan.html"
    code, out, _ = run(
        capsys, "view", "mlp", *SMALL, "--strategies", "none,sharing,packed,cheap,optimal",
        "-o", str(path),
    )  # fmt: skip
    assert code == 0
    assert re.fullmatch(rf"fits this machine: .*\nwritten to {path}\n", out)
    found = content(path.read_text())
    assert found["title"] == "mlp " + " ".join(SMALL)
    assert [(p["label"], p["recompute"], p["allocate"]) for p in found["plans"]] == [
        ("none", "none", "none"),
        ("sharing", "none", "sharing"),
        ("packed", "none", "packed"),
        ("cheap", "cheap", "packed"),
        ("optimal", "optimal", "packed"),
    ]


@pytest.mark.parametrize(("suffix", "start"), [
    (".html", b"<!doctype html>"), (".png", b"\x89PNG"), (".trace.json", b"{"),
    (".snapshot.pickle", b"\x80\x04"),
])  # fmt: skip
def test_the_suffix_selects_the_format(capsys, tmp_path, suffix, start):
    if suffix == ".png":
        pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    assert run(capsys, "view", "mlp", *SMALL, "-o", str(path))[0] == 0
    assert path.read_bytes().startswith(start)


def test_a_plan_from_a_file(capsys, tmp_path):
    plan = g.plan(g.mean(g.relu(g.linear(g.input("x", (4, 3)), 5))), optimizer=g.optim.SGD())
    saved, written = tmp_path / "small.json", tmp_path / "small.snapshot.pickle"
    g.save_plan(plan, saved)
    assert run(capsys, "view", str(saved), "-o", str(written))[0] == 0
    (segment,) = pickle.loads(written.read_bytes())["segments"]
    assert segment["total_size"] == plan.arena_bytes
    code, _, err = run(capsys, "view", str(saved), "--recompute", "cheap", "-o", str(written))
    assert code == 2
    assert "leave out --recompute" in err


def test_measured_times_are_clocks_of_their_own(capsys, tmp_path):
    costs, path = tmp_path / "costs.json", tmp_path / "plan.trace.json"
    run(capsys, "profile", "mlp", *SMALL, "--repeat", "1", "--output", str(costs))
    timed = ["view", "mlp", *SMALL, "--costs", str(costs), "--measure", "2", "-o"]
    assert run(capsys, *timed, str(path))[0] == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.split(":")[0] for name in names] == ["planned", "profiled", "measured"]
    assert "measured on cpu" in names[1]
    assert "best of 2 steps on " in names[2]
    nodes = [[e["name"] for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in (1, 2, 3)]
    assert nodes[0] == nodes[1] == nodes[2]
    counts = [[e["args"]["bytes"] for e in events if e["name"] == "live" and e["pid"] == pid]
              for pid in (1, 2, 3)]  # fmt: skip
    assert counts[0] == counts[1] == counts[2]
    page = tmp_path / "plan.html"
    assert run(capsys, *timed, str(page))[0] == 0
    (found,) = content(page.read_text())["plans"]
    assert found["clock"].startswith("each node's best of 2 steps on ")
    assert 0 < sum(found["nodes"]["seconds"]) < 60


@pytest.mark.parametrize(("given", "told"), [
    (["--measure", "0"], "--measure must be an integer of at least 1, got 0"),
    (["--measure", "1", "--device", "cuda", "--roofline", "h100"], "requires a plan for the CPU"),
])  # fmt: skip
def test_steps_that_cannot_be_measured(capsys, tmp_path, given, told):
    path = tmp_path / "plan.trace.json"
    code, _, err = run(capsys, "view", "mlp", *SMALL, *given, "-o", str(path))
    assert (code, path.exists()) == (2, False)
    assert told in err


def test_the_difference_of_two_plans(capsys, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, policy in zip(paths, ("none", "cheap"), strict=True):
        run(capsys, "plan", "mlp", *SMALL, "--recompute", policy, "--json", "--output", path)
    code, out, _ = run(capsys, "view", "--diff", *paths)
    assert code == 0
    assert "recomputed only in the second" in out
    page = tmp_path / "diff.html"
    code, told, _ = run(capsys, "view", "--diff", *paths, "-o", str(page))
    assert told == out + f"written to {page}\n"
    found = content(page.read_text())
    assert found["notes"] == unfolded(out).splitlines()
    assert max(map(len, out.splitlines())) <= 80
    assert [plan["label"] for plan in found["plans"]] == ["a", "b"]
    code, _, err = run(capsys, "view", "--diff", *paths, "-o", str(tmp_path / "diff.trace.json"))
    assert (code, "only a page" in err) == (2, True)


@pytest.mark.parametrize(("arguments", "said"), [
    (["mlp", "-o", "plan.gif"], "must end in one of: .html, .png"),
    (["mlp", "-o", "missing/plan.html"], "cannot save"),
    (["mlp", "--strategies", "packed,best"], "unknown strategy 'best'"),
    ([], "give a MODEL or a plan"),
    (["mlp", "--diff", "a.json", "b.json"], "leave out 'mlp'"),
    (["--diff", "a.json", "b.json", "--strategies", "none"], "leave out --strategies"),
    (["a.json", "--strategies", "none"], "leave out --strategies"),
    (["--diff", "a.json", "b.json"], "there is no file 'a.json'"),
    (["--diff", "a.json", "b.json", "--recompute", "cheap"], "from files; leave out --recompute"),
    (["--diff", "a.json", "b.json", "--measure", "1"], "--measure: only a page"),
    (["--diff", "a.json", "b.json", "--costs", "c.json"], "--costs: only a page"),
    (["a.json", "--roofline", "h100", "-o", "x.png"], "--roofline: only a page"),
    (["mlp", "--measure", "1", "-o", "x.snapshot.pickle"], "--measure: only a page"),
    (["mlp", "--strategies", "none,none"], "'none' twice"),
    (["mlp", "--strategies", ""], "unknown strategy ''"),
    (["mlp", "--strategies", "cheap", "--recompute", "none", "--allocate", "none"],
     "leave out --allocate"),
    (["mlp", "--strategies", "none,cheap", "--dump", "d"], "leave out --dump"),
    (["mlp", "-o", ""], "'' must end in one of"),
])  # fmt: skip
def test_mistakes(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "view", *arguments)
    assert code == 2
    assert said in err
    assert not list(tmp_path.iterdir())


def test_explain_a_value(capsys):
    code, out, _ = run(capsys, "explain", "mlp", "layer1/relu", *SMALL)
    assert code == 0
    assert out.splitlines()[1].startswith("%3 is f32[4,16]")
    assert run(capsys, "explain", "mlp", *SMALL, "%3")[1] == out
    assert run(capsys, "explain", "mlp", *SMALL, "--value", "%3")[1] == out


def test_explain_the_peak_and_what_lowers_it(capsys):
    code, out, _ = run(capsys, "explain", "mlp", *WIDE, "--allocate", "none", "--peak")
    assert code == 0
    lines = unfolded(out).split(f"{HEADING}\n")[1].splitlines()
    said = {line.split(": ")[1] for line in lines}
    assert {"--allocate packed", "batch=256, half of it"} <= said
    sizes = []
    for line in lines:
        figure, unit = line.split(",")[0].split()
        sizes.append(float(figure) * {"KiB": 1, "MiB": 1024}[unit])
    assert sizes == sorted(sizes)
    packed = json.loads(run(capsys, "plan", "mlp", *WIDE, "--json")[1])["arena_bytes"]
    told = next(line for line in lines if line.endswith("--allocate packed")).split(",")[0]
    assert told.split()[0] == f"{packed / 2**20:.2f}"


def test_explain_accepts_its_value_after_options(capsys):
    before = run(capsys, "explain", "mlp", *SMALL, "%1", "--recompute", "cheap")
    assert before[0] == 0
    assert run(capsys, "explain", "mlp", "--recompute", "cheap", "%1", *SMALL) == before


def test_explain_what_is_kept(capsys):
    code, out, _ = run(capsys, "explain", "mlp", *SMALL, "--kept")
    assert code == 0
    assert out.splitlines()[1].startswith("The forward pass saves 6 values")


def lowering(capsys, *arguments):
    """What `explain --peak` says to lower the arena, and by which bytes."""
    code, out, _ = run(capsys, "explain", *arguments, "--peak")
    assert code == 0
    out = unfolded(out)
    rows = re.findall(r"^  (\S+ \S+), (\S+ \S+) less(.*?): (.*)$", out, re.MULTILINE)
    return {how: (arena, saved, time) for arena, saved, time, how in rows}, out


@pytest.mark.slow
def test_the_batch_is_the_models_own(capsys):
    """Not an axis of an input, which may count steps of time or micro-batches."""
    small = ["layers=1", "hidden=8", "inputs=4", "classes=3", "seq_len=3"]
    for arguments, batch in (
        (["lstm", *small], 64), (["lstm", *small, "batch=10"], 10),
        (["mlp", *WIDE, "--accumulate", "2"], 512),
    ):  # fmt: skip
        found, _ = lowering(capsys, *arguments)
        half = f"batch={batch // 2}, half of it"
        assert half in found
        settings = [entry for entry in arguments if not entry.startswith("batch")]
        whole, halved = (
            json.loads(run(capsys, "plan", *settings, f"batch={b}", "--json")[1])["arena_bytes"]
            for b in (batch, batch // 2)
        )
        assert found[half][:2] == (format_bytes(halved), format_bytes(whole - halved))
        assert found[half][2] == ""  # parts of steps of two batches say nothing of each other


@pytest.mark.slow
def test_only_tried_options_are_printed(capsys):
    wide = ["mlp", "layers=6", "hidden=16", "inputs=8", "batch=256"]
    found, _ = lowering(capsys, *wide)
    assert {"--recompute sublinear", "batch=128, half of it"} <= set(found)
    assert re.fullmatch(r", \+[\d.]+% time", found["--recompute sublinear"][2])
    assert not any("recompute" in how for how in lowering(capsys, *wide, "--budget", "1MiB")[0])
    found, _ = lowering(capsys, *wide, "--recompute", "recursive", "--allocate", "inplace")
    assert "--allocate packed" in found
    assert "--recompute recursive" not in found
    _, out = lowering(capsys, "mlp", *SMALL, "--kernels", "numpy")
    assert "The arena is not lowered by batch=2, half of it, --recompute sublinear, " in out
    _, out = lowering(capsys, "mlp", "layers=1", "batch=1", "--optimizer", "none")
    assert "lower" not in out


def test_explain_plans_with_measured_times(capsys, tmp_path):
    costs, model = tmp_path / "costs.json", ["layers=4", *WIDE[1:]]
    run(capsys, "profile", "mlp", *model, "--repeat", "1", "--output", str(costs))
    content = json.loads(costs.read_text())
    assert content["measured"]
    for entry in content["measured"]:
        entry["seconds"] *= 1000  # no machine is by chance as fast as the roofline says
    costs.write_text(json.dumps(content))
    plain, timed, peaks = (
        run(capsys, "explain", "mlp", *model, "%3.m1", "--recompute", "cheap", *options)[1]
        for options in ([], ["--costs", str(costs)], ["--roofline", "v100"])
    )
    assert len({plain, timed, peaks}) == 3


@pytest.mark.parametrize("arguments", [["mlp"], ["mlp", "%3", "--peak"], ["mlp", "%3", "%4"]])
def test_explain_one_thing(capsys, arguments):
    code, _, err = run(capsys, "explain", *arguments)
    assert (code, "give exactly one of VALUE" in err) == (2, True)


def test_explain_a_plan_from_a_file(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    run(capsys, "plan", "mlp", *SMALL, "--json", "--output", path)
    assert run(capsys, "explain", path, "%3")[1] == run(capsys, "explain", "mlp", *SMALL, "%3")[1]
    assert "What lowers" not in run(capsys, "explain", path, "--peak")[1]


@pytest.mark.slow
def test_the_page_knows_the_budget_or_else_the_memory_of_the_device(capsys, tmp_path):
    path = tmp_path / "plan.html"

    def limits(*options):
        assert run(capsys, "view", "mlp", *WIDE, *options, "-o", str(path))[0] == 0
        return [plan["limit"] for plan in content(path.read_text())["plans"]]

    assert limits("--budget", "2MiB") == [{"bytes": 2 * 2**20, "name": "budget"}]
    h100 = gpu_memory("h100").usable_bytes
    wanted = {"bytes": h100, "name": "memory of h100"}
    device = ["--device", "cuda", "--roofline", "h100"]
    assert limits(*device, "--strategies", "none,packed") == [wanted, wanted]
    here = {"bytes": machine_memory().usable_bytes, "name": "memory of this machine"}
    assert limits() == [here]
    saved = str(tmp_path / "plan.json")
    run(capsys, "plan", "mlp", *WIDE, *device, "--output", saved)
    assert run(capsys, "view", saved, "-o", str(path))[0] == 0
    assert content(path.read_text())["plans"][0]["limit"] == wanted
