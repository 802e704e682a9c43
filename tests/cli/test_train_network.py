"""Training of any network on arrays: epochs, held-out examples, checkpoints, mistakes."""

import json
import sys

import numpy as np
import pytest
import safetensors.numpy
from cli.running import run as command

import graphc as g
from graphc.cli.models import build
from graphc.training.evaluation import Evaluation

NETWORK = """
import graphc

def logits(batch):
    x = graphc.input("x", (batch, 6))
    h = graphc.batch_norm(graphc.linear(x, 32, name="body"), name="norm")
    return graphc.linear(graphc.dropout(graphc.relu(h), 0.1), 3, name="head")

def build(batch=8):
    return graphc.softmax_cross_entropy(logits(batch), graphc.input("labels", (batch,), "int32"))

def ignoring(batch=8):
    labels = graphc.input("labels", (batch,), "int32")
    return graphc.softmax_cross_entropy(logits(batch), labels, ignore_index=1)

def regression(batch=8):
    return graphc.mse(logits(batch), graphc.input("target", (batch, 3)))

def text(batch=8):
    return "a loss"

def feeds():
    import numpy as np
    yield {"x": np.ones((8, 6), "f"), "labels": np.zeros(8, "int32")}
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    x = np.random.default_rng(0).standard_normal((100, 6)).astype(np.float32)
    np.savez("arrays.npz", x=x, labels=x[:, :3].argmax(1), target=x[:, :3].astype(np.float64))


def run(capsys, *arguments, code=0):
    found, out, err = command(capsys, "train", *map(str, arguments))
    assert found == code, err
    return err if code else out


DATA = ("--data", "arrays.npz")


def test_a_network_of_graphc_is_trained_and_evaluated(capsys):
    options = ("net.py:build", *DATA, "--held-out", 0.2, "--epochs", 12, "--learning-rate", 0.02)
    told = run(capsys, *options)
    assert "100; 80 per epoch in 10 steps, 16 held out, 4 left over" in told
    assert "evaluation" in told
    assert "epoch  12" in told
    assert "examples/s" in told
    found = json.loads(run(capsys, *options, "--json"))
    assert found["model"] == "net.py:build"
    assert (found["steps_per_epoch"], found["remaining_examples"]) == (10, 4)
    reports = found["reports"]
    assert [report["epoch"] for report in reports] == list(range(1, 13))
    assert reports[-1]["step"] == 120
    assert reports[-1]["held_out_loss"] < 0.7 * reports[0]["held_out_loss"]
    assert reports[-1]["held_out_accuracy"] >= 0.75
    planned = json.loads(run_plan(capsys, "net.py:build"))
    assert found["arena_bytes"] == planned["arena_bytes"], "evaluation must not change the plan"


def run_plan(capsys, *arguments):
    code, out, err = command(capsys, "plan", *arguments, "--optimizer", "adam", "--json")
    assert code == 0, err
    return out


def test_models_of_the_zoo_are_trained(capsys):
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 16)).astype(np.float32)
    np.savez("mlp.npz", x=x, labels=x[:, :4].argmax(1))
    sizes = ("layers=2", "hidden=8", "inputs=16", "classes=4", "batch=8")
    found = json.loads(run(capsys, "mlp", *sizes, "--data", "mlp.npz", "--epochs", 2, "--json"))
    assert [report["step"] for report in found["reports"]] == [5, 10]
    assert "held_out_loss" not in found["reports"][0]


def test_a_regression_has_no_accuracy(capsys):
    options = ("net.py:regression", *DATA, "--held-out", 0.1, "--epochs", 1, "--json")
    (report,) = json.loads(run(capsys, *options))["reports"]
    assert "held_out_loss" in report
    assert "held_out_accuracy" not in report


def test_a_resumed_run_equals_an_uninterrupted_one(capsys):
    options = ("net.py:build", *DATA, "--held-out", 0.1, "--accumulate", 2, "--seed", 3, "--json")
    whole = json.loads(run(capsys, *options, "--epochs", 4, "--save", "whole"))
    run(capsys, *options, "--epochs", 2, "--save", "half")
    rest = json.loads(run(capsys, *options, "--epochs", 4, "--resume", "half", "--save", "rest"))
    assert rest["reports"] == whole["reports"][2:]
    a, b = (safetensors.numpy.load_file(name) for name in ("whole", "rest"))
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    other = ("net.py:build", *DATA, "--held-out", 0.3, "--accumulate", 2, "--seed", 3)
    assert "held_out was" in run(capsys, *other, "--epochs", 4, "--resume", "half", code=2)


def test_the_trained_network_is_that_of_a_loop_over_the_same_batches(capsys):
    run(capsys, "net.py:build", *DATA, "--epochs", 1, "--save", "run", "--optimizer", "sgd")
    program = g.compile(build("net.py:build", []), optimizer=g.optim.SGD(1e-3))
    with np.load("arrays.npz") as arrays:
        order = np.random.default_rng((0, 0)).permutation(100)
        for start in range(0, 96, 8):
            rows = order[start : start + 8]
            program.step(x=arrays["x"][rows], labels=arrays["labels"][rows].astype(np.int32))
    saved = safetensors.numpy.load_file("run")
    for name, array in program.parameters.items():
        np.testing.assert_array_equal(saved[name], array)


@pytest.mark.parametrize("function", ["build", "ignoring"])
def test_the_accuracy_is_that_of_the_logits(function):
    loss = build(f"net.py:{function}", [])
    with np.load("arrays.npz") as arrays:
        x, labels = arrays["x"][:16], arrays["labels"][:16].astype(np.int32)
    batches = [{"x": x[i : i + 8], "labels": labels[i : i + 8]} for i in (0, 8)]
    evaluation = Evaluation(loss, lambda: batches, {})
    scores = evaluation.scores()
    classes = []
    logits = g.compile(outputs={"logits": _logits(loss)})
    for batch in batches:
        classes.append(logits.step(x=batch["x"])["logits"].argmax(1))
    counted = labels != 1 if function == "ignoring" else np.ones(16, bool)
    assert scores.accuracy == (np.concatenate(classes) == labels)[counted].mean()


def _logits(loss):
    graph = g.ir.builder.trace({"loss": loss})
    return next(n.inputs[0] for n in graph.nodes if n.op.name.endswith("cross_entropy"))


def test_a_run_may_be_counted_in_steps(capsys):
    options = ("net.py:build", *DATA, "--steps", 30, "--json")
    reports = json.loads(run(capsys, *options))["reports"]
    assert [report["step"] for report in reports] == list(range(2, 31, 2))
    assert "epoch" not in reports[0]


def test_feeds_of_a_function(capsys):
    told = run(capsys, "net.py:build", "--data", "net.py:feeds", "--steps", 2)
    assert "step     2" in told
    assert "steps/s" in told


def test_the_losses_are_drawn(capsys):
    pytest.importorskip("matplotlib", reason="pictures require matplotlib")
    options = ("net.py:build", *DATA, "--epochs", 2, "--held-out", 0.1, "--curve")
    run(capsys, *options, "loss.png")
    with open("loss.png", "rb") as file:
        assert file.read(4) == b"\x89PNG"
    assert "must end in .png" in run(capsys, *options, "loss.pdf", code=2)


def test_a_missing_matplotlib_is_told_before_training(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "graphc.view.picture", raising=False)
    told = run(capsys, "net.py:build", "--data", "gone.npz", "--curve", "loss.png", code=2)
    assert "pictures require matplotlib" in told


@pytest.mark.parametrize(
    ("arrays", "options", "told"),
    [
        ({"x": (100, 6)}, (), "has no array 'labels'; the network needs x f32[8,6], labels i32[8]"),
        ({"x": (100, 6), "label": (100,)}, (), "did you mean label"),
        ({"x": (100, 5), "labels": (100,)}, (), "'x' is float32[100, 5], but a step needs rows"),
        ({"x": (100, 6), "labels": (90,)}, (), "the same number of rows, at least 8; got 90, 100"),
        ({"x": (7, 6), "labels": (7,)}, (), "at least 8; got 7"),
        ({"x": (12, 6), "labels": (12,)}, ("--held-out", 0.5), "a step needs 8 beside 8 that are"),
        ({"x": (20, 6), "labels": (20,)}, ("--accumulate", 3), "a step needs 24; add examples"),
    ],
)
def test_mistakes_about_arrays(capsys, arrays, options, told):
    dtypes = {"x": np.float32, "labels": np.int64, "label": np.int64}
    np.savez("wrong.npz", **{n: np.zeros(shape, dtypes[n]) for n, shape in arrays.items()})
    assert told in run(capsys, "net.py:build", "--data", "wrong.npz", *options, code=2)


def test_mistakes_about_dtypes(capsys):
    np.savez("bytes.npz", x=np.zeros((9, 6), np.uint8), labels=np.zeros(9, int))
    assert "convert it to float32" in run(capsys, "net.py:build", "--data", "bytes.npz", code=2)
    np.savez("large.npz", x=np.zeros((9, 6), "f"), labels=np.full(9, 2**40))
    told = run(capsys, "net.py:build", "--data", "large.npz", code=2)
    assert "int32 cannot represent all of them" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("net.py:text", *DATA), "must return a graphc value"),
        (("net.py", *DATA), "names no function"),
        (("net.py:build", *DATA, "--held-out", 1), "a fraction from 0 to below 1, got 1"),
        (("net.py:build", *DATA, "--epochs", 0), "--epochs must be an integer of at least 1"),
        (("net.py:build", *DATA, "--epochs", 1, "--steps", 1), "not both"),
        (("net.py:build", *DATA, "--export", "a.onnx"), "net.py:build is neither"),
        (("net.py:build", *DATA, "--loss", "mse"), "has no setting 'loss'"),
        (("net.py:build", "--data", "net.py:feeds", "--epochs", 1), "--epochs needs --data FILE"),
        (("net.py:build", "--data", "net.py:feeds", "--held-out", 0.1), "--held-out needs --data"),
        (("net.py:build", "--data", "arrays"), "must be FILE.npz or file.py:function"),
    ],
)
def test_mistakes_about_options(capsys, arguments, told):
    assert told in run(capsys, *arguments, code=2)


WHOLE = ("--no-drop-last", "--optimizer", "sgd", "--learning-rate", 0.1)


def test_without_drop_last_the_rest_of_an_epoch_is_a_smaller_batch(capsys):
    """An epoch of 80 examples in batches of 12: six whole ones, and one of 8, in one arena."""
    options = ("net.py:build", "batch=12", *DATA, "--held-out", 0.2, "--epochs", 2, *WHOLE)
    told = run(capsys, *options, "--save", "run")
    assert "100; 76 per epoch in 7 steps, 24 held out, 0 left over" in told
    programs = {n: g.compile(build("net.py:build", [f"batch={n}"]), optimizer=g.optim.SGD(0.1))
                for n in (12, 4)}  # fmt: skip
    assert f"arena {programs[12].arena_bytes:,} bytes" in told
    rows = np.random.default_rng(0).permutation(100)[24:]
    states, losses = programs[12].states, []
    with np.load("arrays.npz") as arrays:
        for epoch in range(2):
            order, found = np.random.default_rng((0, epoch)).permutation(rows), 0.0
            for start in range(0, 76, 12):
                chosen = order[start : start + 12]
                program = programs[len(chosen)]
                program.states.update(dict(states))
                labels = arrays["labels"][chosen].astype(np.int32)
                loss = program.step(x=arrays["x"][chosen], labels=labels)["loss"]
                found, states = found + float(loss) * len(chosen), program.states
            losses.append(found / 76)
    saved = safetensors.numpy.load_file("run")
    assert all(saved[name].tobytes() == array.tobytes() for name, array in states.items())
    reports = json.loads(run(capsys, *options, "--json"))["reports"]
    assert [report["loss"] for report in reports] == pytest.approx(losses, rel=1e-12)


def test_a_run_with_a_smaller_last_batch_resumes_bit_for_bit(capsys):
    options = ("net.py:build", "batch=24", *DATA, *WHOLE, "--seed", 2)
    run(capsys, *options, "--steps", 12, "--save", "whole")
    run(capsys, *options, "--steps", 7, "--save", "half")
    run(capsys, *options, "--steps", 12, "--resume", "half", "--save", "rest")
    a, b = (safetensors.numpy.load_file(name) for name in ("whole", "rest"))
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    dropped = [each for each in options if each != "--no-drop-last"]
    assert "last_batch" in run(capsys, *dropped, "--steps", 12, "--resume", "half", code=2)


def test_where_a_smaller_last_batch_is_refused(capsys, tmp_path):
    (tmp_path / "fixed.py").write_text(
        NETWORK.replace("def build(batch=8):", "def build(rows=8):\n    batch = rows")
    )
    for options, message in (
        ((*DATA, "--accumulate", 2), "needs steps of one batch, got --ranks 1 and --accumulate 2"),
        (("--data", "net.py:feeds"), "determines its own batches"),
    ):
        assert message in run(capsys, "net.py:build", *options, "--no-drop-last", code=2)
    error = run(capsys, "fixed.py:build", *DATA, "--no-drop-last", code=2)
    assert "has no argument 'batch' for its size; it takes rows" in error


def test_batches_that_divide_the_examples_need_no_family(capsys):
    one = run(capsys, "net.py:build", "batch=10", *DATA, "--epochs", 1, "--json")
    other = run(capsys, "net.py:build", "batch=10", *DATA, "--epochs", 1, "--json", *WHOLE[:1])
    assert json.loads(one)["reports"] == json.loads(other)["reports"]
