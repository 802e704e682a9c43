"""Functions that return a module of torch and its arguments, in place of MODEL."""

import json

import numpy as np
import pytest
from cli.running import run as command
from safetensors import safe_open

torch = pytest.importorskip("torch", reason="torch is not installed")

FUNCTION = """
import torch

def net(batch=8):
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    return module, (torch.zeros(batch, 4),)

def dropping(p=0.5):
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(p), torch.nn.Tanh())
    return module, (torch.zeros(8, 4),)

def own(joint, given, **more):
    from torch._functorch.partitioners import default_partition
    return default_partition(joint, given, **more)

def plain(batch=8):
    import graphc
    return graphc.mean(graphc.input("x", (batch,)))
"""


def run(capsys, *arguments, code=0):
    found, out, err = command(capsys, *map(str, arguments))
    assert found == code, err
    return err if code else out


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FUNCTION)
    return "net.py:net"


def test_commands_take_a_module(file, capsys):
    options = (file, "batch=16", "--loss", "cross_entropy")
    plan = json.loads(run(capsys, "plan", *options, "--json"))
    assert plan["arguments"] == {"batch": 16, "loss": "cross_entropy"}
    assert plan["state_bytes"] == 4 * 256
    rows = json.loads(run(capsys, "compare", *options, "--json"))
    assert rows
    assert "arena" in run(capsys, "explain", *options, "--peak")
    run(capsys, "view", *options, "-o", "page.html")
    frozen = json.loads(run(capsys, "plan", *options, "--trainable", "^2", "--json"))
    assert frozen["nodes"] < plan["nodes"]


def test_training(file, capsys):
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 4)).astype(np.float32)
    np.savez("arrays.npz", input=x, labels=x[:, :3].argmax(1))
    common = ("train", file, "--loss", "cross_entropy", "--data", "arrays.npz", "--json")
    found = run(capsys, *common, "--steps=40", "--learning-rate=0.05", "--save=run.safetensors")
    losses = [report["loss"] for report in json.loads(found)["reports"]]
    assert losses[-1] < 0.7 * losses[0]
    with safe_open("run.safetensors", "numpy") as saved:
        assert {"0.weight", "0.bias", "2.weight", "2.bias"} <= set(saved.keys())


def test_mistakes(file, capsys):
    assert "give --loss cross_entropy, mse" in run(capsys, "plan", file, code=2)
    told = run(capsys, "plan", "net.py:plain", "--loss", "mse", code=2)
    assert "has no setting 'loss'" in told
    assert "matches 'none'" in run(capsys, "plan", file, "--trainable", "none", code=2)


def test_audit(file, capsys):
    found = json.loads(run(capsys, "audit", file, "batch=16", "--json"))
    assert (found["correct"], found["faults"]) == (True, [])
    assert found["bound_bytes"] <= found["peak_bytes"]
    assert "values              correct" in run(capsys, "audit", file, "--partition", "net.py:own")
    code, out, _ = command(capsys, "audit", "net.py:dropping", "--memory-budget", "0")
    assert code == 1
    assert "the gradient of 0.weight is wrong" in out
    assert "must be file.py:function" in run(capsys, "audit", "mlp", code=2)
    assert "choose one of" in run(capsys, "audit", file, "--partition", "cut", code=2)
