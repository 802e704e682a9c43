"""ONNX files in place of MODEL."""

import json
import re

import numpy as np
import onnx
import pytest
from cli.running import run as command
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_files import write_arrays, write_model

import graphc as g
from graphc.cli.models import build
from graphc.ir import builder


def run(capsys, *arguments, code=0):
    """What a command says, on standard output or, where it fails, on standard error."""
    found, out, err = command(capsys, *map(str, arguments))
    assert found == code, err
    return err if code else out


@pytest.fixture
def file(tmp_path):
    """A small model of x (batch, 3)."""
    write_model(tmp_path / "net.onnx", "net.data")
    return tmp_path / "net.onnx"


def test_a_plan_reads_no_weights(file, capsys):
    (file.parent / "net.data").unlink()
    found = run(capsys, "plan", file, "batch=8", "--loss", "cross_entropy", "--json")
    plan = json.loads(found)
    arguments = plan["arguments"]
    assert arguments == {"loss": "cross_entropy", "trainable": None, "batch": 8}
    assert plan["state_bytes"] == 2 * 256
    frozen = run(capsys, "plan", file, "batch=8", "--loss", "mse", "--trainable", "b", "--json")
    assert json.loads(frozen)["nodes"] < plan["nodes"] + 3
    assert "batch=8" not in run(capsys, "explain", file, "batch=8", "--loss=mse", "--peak")


def test_the_loss_is_what_is_asked_for(file, capsys):
    cross, squares, output = (
        builder.trace({"loss": build(str(file), ["batch=2", f"loss={loss}"])})
        for loss in ("cross_entropy", "mse:logits", "logits")
    )
    assert [x.name for x in cross.inputs] == ["x", "labels"]
    assert [str(x.type) for x in squares.inputs] == ["f32[2,3]", "f32[2,3]"]
    assert cross.nodes[-1].op.name == "softmax_cross_entropy"
    assert output.outputs["loss"].shape == (2, 3)
    assert {node.scope for node in output.nodes} == {"first", "last"}


def test_the_shape_of_an_input_is_enough_for_others_of_the_same_extents(tmp_path):
    vectors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "aby"]
    nodes = [helper.make_node("Sub", ["a", "b"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", vectors[:2], vectors[2:])),
              tmp_path / "both.onnx")  # fmt: skip
    (loss,) = builder.trace({"y": build(str(tmp_path / "both.onnx"), ["a=(4,)", "loss=y"])}).nodes
    assert [x.shape for x in loss.inputs] == [(4,), (4,)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--loss", "mse"], r"needs batch=\.\.\.; its inputs are x \[batch, 3\]"),
        (["batch=2"], "0 scalar outputs, but needs one loss; give --loss cross_entropy, mse"),
        (["batch=2", "--loss", "logit"], "did you mean logits"),
        (["batch=2", "rows=2", "--loss", "mse"], "no extent or input 'rows'"),
        (["batch=two", "--loss", "mse"], "'batch' must be integers"),
        (["batch=2", "--loss", "mse", "--trainable", "none"], "matches 'none'"),
    ],
)
def test_mistakes(file, capsys, arguments, told):
    message = run(capsys, "plan", file, *arguments, code=2)
    assert re.search(told, message)


def test_flags_of_onnx_files_are_for_these(capsys):
    message = run(capsys, "plan", "mlp", "--loss", "mse", code=2)
    assert "mlp has no setting 'loss'" in message
    assert "cannot be read" in run(capsys, "plan", "missing.onnx", code=2)


FUNCTION = """
import numpy as np

def batches():
    with np.load("arrays.npz") as arrays:
        for start in (0, 8):
            rows = slice(start, start + 8)
            yield {"x": arrays["x"][rows].astype("f"), "labels": arrays["labels"][rows]}

def one():
    return {"x": 1}

def none():
    return []
"""


def test_training(file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_arrays("arrays.npz")
    (tmp_path / "feeds.py").write_text(FUNCTION)
    common = ["train", file, "batch=8", "--loss", "cross_entropy", "--json", "--learning-rate=0.1"]
    for data in ("arrays.npz", "feeds.py:batches"):
        found = run(
            capsys, *common, "--data", data, "--steps=40", "--export=trained.onnx", "--save=whole"
        )
        losses = [report["loss"] for report in json.loads(found)["reports"]]
        assert losses[-1] < 0.7 * losses[0]
        trained = dict(g.onnx.load("trained.onnx").states)
        run(capsys, *common, "--data", data, "--steps=15", "--save=part")
        run(capsys, *common, "--data", data, "--steps=40", "--resume=part", "--export=again.onnx")
        for name, array in g.onnx.load("again.onnx").states.items():
            np.testing.assert_array_equal(array, trained[name])
        assert set(trained) == {"w", "b"}
        assert not np.array_equal(trained["w"], [0.5, 1.5, -1.0])


UNREAD = """
import numpy as np

def batches():
    yield {"x": np.ones((8, 3), "f"), "target": np.zeros((8, 3), "f"), "q": np.ones(2, "f")}

def misspelt():
    yield {"x": np.ones((8, 3), "f"), "target": np.zeros((8, 3), "f"), "p": np.ones(2, "f")}
"""


def test_an_exported_model_has_the_outputs_of_its_file(file, capsys, tmp_path, monkeypatch):
    """Also those that the loss does not read, with their inputs; a function may feed these."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "feeds.py").write_text(UNREAD)
    model = onnx.load(file)
    model.graph.input.append(onnx.helper.make_tensor_value_info("q", 1, [2]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("r", 1, [2]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, "f"), "v"))
    model.graph.node.append(onnx.helper.make_node("Mul", ["q", "v"], ["r"]))
    onnx.save(model, file)
    common = ["train", file, "batch=8", "--loss=mse:logits", "--steps=3", "--export=out.onnx"]
    run(capsys, *common, "--data=feeds.py:batches")
    made = onnx.load("out.onnx")
    assert [x.name for x in made.graph.input] == ["x", "q"]
    assert [x.name for x in made.graph.output] == ["logits", "r"]
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    assert not np.array_equal(weights["b"], np.zeros(3))
    rows, q = np.ones((8, 3), np.float32), np.array([2, 3], np.float32)
    logits, r = ReferenceEvaluator(made).run(None, {"x": rows, "q": q})
    np.testing.assert_allclose(logits, np.tanh(rows * weights["w"]) + weights["b"], rtol=1e-6)
    np.testing.assert_array_equal(r, q)
    assert "no input 'p'" in run(capsys, *common, "--data=feeds.py:misspelt", code=2)


def test_mistakes_about_data(file, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_arrays("arrays.npz")
    np.save("one.npy", np.zeros(3))
    (tmp_path / "feeds.py").write_text(FUNCTION)
    np.savez("few.npz", x=np.zeros((4, 3)), labels=np.zeros(4, int))
    np.savez("wide.npz", x=np.zeros((9, 4)), labels=np.zeros(9, int))
    for data, told in (
        ("missing.npz", "No such file"),
        ("few.npz", "at least 8"),
        ("wide.npz", "needs rows of f32[8,3]"),
        ("one.npy", "file.py:function"),
        ("feeds.py:one", "got dict"),
        ("feeds.py:none", "yielded no feeds"),
        ("feeds.py:some", "has no function 'some'"),
    ):
        options = ["batch=8", "--loss=cross_entropy", "--data", data]
        assert told in run(capsys, "train", file, *options, code=2)
    found = run(capsys, "train", file, "batch=8", "--loss=mse", "--data=arrays.npz", code=2)
    assert "has no array 'target'" in found
