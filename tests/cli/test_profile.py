"""graphc profile, and plans with what it wrote."""

import io
import json
from contextlib import redirect_stdout

import pytest
from cli.running import run

from graphc import plan
from graphc.cli import main
from graphc.models import gpt2
from graphc.optim import AdamW
from graphc.plans.costs import node_key, read_costs

SMALL = ["layers=1", "width=16", "heads=2", "seq_len=8", "batch=2", "vocab=11"]


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """The file of one profile, and what the command printed."""
    path, out = tmp_path_factory.mktemp("costs") / "measured.json", io.StringIO()
    asked = ("profile", "gpt2", *SMALL, "--optimizer", "adamw", "--repeat", "2")
    with redirect_stdout(out):
        assert main([*asked, "--output", str(path)]) == 0
    return path, out.getvalue()


def test_the_file_covers_the_plan_and_the_table_its_ops(costs):
    path, out = costs
    found = json.loads(path.read_text())
    assert list(found) == ["format", "device", "measured", "host_link"]
    assert found["format"] == 1
    assert list(found["device"]) == ["name", "machine", "numpy", "kernels"]
    loss = gpt2(layers=1, width=16, heads=2, seq_len=8, batch=2, vocab=11)
    nodes = plan(loss, optimizer=AdamW()).graph.nodes
    assert {entry["key"] for entry in found["measured"]} == {node_key(node) for node in nodes}
    assert sum(entry["count"] for entry in found["measured"]) == len(nodes)
    title, *rows, link, last = out.splitlines()
    assert "calls  total ms  share  measured / cpu roofline" in title
    assert link.startswith("link to host memory: ")
    *ops, step = (row.split() for row in rows)
    assert {row[0] for row in ops} == {node.op.name for node in nodes}
    assert step[:2] == ["step", str(len(nodes))]
    assert sum(int(row[1]) for row in ops) == len(nodes)
    totals = [float(row[2]) for row in ops]
    assert totals == sorted(totals, reverse=True)
    assert last == f"{len(read_costs(path).measured)} kernels written to {path}"


def between(text, begins, ends):
    found = text[text.index(begins) : text.index(ends)]
    assert len(found.splitlines()) > 5
    return found


def test_plan_and_compare_take_the_file(capsys, costs):
    path = str(costs[0])
    model = ["gpt2", *SMALL, "--optimizer", "adamw"]
    choice = ["--recompute", "recursive", "--text"]
    code, out, _ = run(capsys, "plan", *model, *choice, "--costs", path)
    assert code == 0
    told = f"costs={len(read_costs(path).measured)} kernels measured on cpu"
    assert told in " ".join(out.split())
    assert run(capsys, "plan", *model, *choice, "--costs", path)[1] == out
    plain = run(capsys, "plan", *model, *choice)[1]
    for begins, ends in ("nodes\n", "plan: "), ("bytes by kind", "lower"):
        assert between(out, begins, ends) == between(plain, begins, ends)
    small = ("mlp", "layers=2", "hidden=8", "batch=4")
    code, out, _ = run(capsys, "compare", *small, "--roofline", "h100", "--json")
    assert code == 0
    assert {p["settings"]["costs"] for p in json.loads(out)} == {"roofline of h100"}


def test_train_takes_the_file_and_computes_the_same(capsys, costs, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    options = ["train", "digits", "layers=2", "hidden=8", "--json", "--epochs", "1"]
    saved = str(tmp_path / "saved")
    first = json.loads(run(capsys, *options, "--save", saved)[1])
    second = json.loads(run(capsys, *options, "--costs", str(costs[0]))[1])
    assert first["epochs"] == second["epochs"]
    assert second["settings"]["costs"].endswith("measured on cpu, host link measured")
    more = [*options[:-1], "2", "--resume", saved, "--roofline", "a100"]
    assert run(capsys, *more)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "mlp", "--costs", "gone.json"], "cannot read the costs 'gone.json'"),
        (["compare", "mlp", "--costs", __file__], "is not valid JSON"),
        (["train", "digits", "--costs", "gone.json"], "cannot read the costs"),
        (["plan", "mlp", "--roofline", "gpu"], "unknown device profile 'gpu'; choose one of: cpu"),
        (["profile", "mlp", "--repeat", "0"], "--repeat must be an integer of at least 1, got 0"),
        (["profile", "mlp", "--output", "gone/costs.json"], "cannot save to 'gone/costs.json'"),
        (["profile", "nothing"], "unknown model 'nothing'"),
    ],
)
def test_mistakes_exit_with_2_and_a_message(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
