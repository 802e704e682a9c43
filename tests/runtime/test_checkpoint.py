import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphc as g
from graphc.errors import CheckpointError
from graphc.models import mlp

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
FEEDS = {"x": X, "labels": np.arange(8, dtype=np.int32)}


def program(hidden=12, optimizer=None):
    loss = mlp(layers=2, hidden=hidden, inputs=16, batch=8)
    return g.compile(loss, optimizer=optimizer or g.optim.Adam(0.01))


def states(of):
    return {name: array.tobytes() for name, array in of.states.items()}


def test_a_loaded_run_goes_on_bit_for_bit(tmp_path):
    first, second = program(), program()
    for _ in range(3):
        first.step(FEEDS)
    first.save(tmp_path / "run.safetensors")
    second.load(tmp_path / "run.safetensors")
    assert states(first) == states(second)
    assert first.step(FEEDS)["loss"] == second.step(FEEDS)["loss"]
    assert states(first) == states(second)
    found = load_file(tmp_path / "run.safetensors")
    assert found["counter/step"] == 3
    assert found["layer0/weight"].shape == (12, 16)


def damaged(kind, path):
    if kind == "another network":
        program(hidden=13).save(path)
    elif kind == "another optimizer":
        program(optimizer=g.optim.SGD()).save(path)
    elif kind == "extra":
        save_file({**load_file(path), "more": np.zeros(3)}, path)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == "header only":
        path.write_bytes(path.read_bytes()[:50])
    elif kind == "not safetensors":
        path.write_text("hello")
    elif kind == "missing":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "another network",
            r"layer0/weight is float32\[13, 16\], this network has float32\[12, 16\]",
        ),
        ("another optimizer", "missing .*adam"),
        ("extra", "unknown more"),
        ("truncated", "cannot be read.*unchanged"),
        ("header only", "cannot be read"),
        ("not safetensors", "cannot be read"),
        ("missing", "there is no file"),
        ("folder", "cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(tmp_path, kind, message):
    path = tmp_path / "run.safetensors"
    target = program()
    target.step(FEEDS)
    target.save(path)
    damaged(kind, path)
    before = states(target)
    with pytest.raises(CheckpointError, match=message):
        target.load(path)
    assert states(target) == before


def test_an_unwritable_path_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="cannot write"):
        program().save(tmp_path / "no" / "folder" / "run.safetensors")
    (tmp_path / "taken").mkdir()
    with pytest.raises(CheckpointError, match="nothing was written"):
        program().save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


KILLED_WHILE_SAVING = """
import os, signal, sys
import numpy as np
import graphc as g
from graphc.models import mlp
from graphc.runtime import checkpoint

program = g.compile(mlp(layers=2, hidden=12, inputs=16, batch=8), optimizer=g.optim.Adam(0.5))
program.step(x=np.ones((8, 16), np.float32), labels=np.arange(8, dtype=np.int32))
checkpoint.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
program.save(sys.argv[1])
"""


def test_a_kill_while_saving_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "run.safetensors"
    saved = program()
    saved.save(path)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_SAVING, os.fspath(path)], capture_output=True
    )
    assert done.returncode == -signal.SIGKILL
    loaded = program()
    loaded.step(FEEDS)
    loaded.load(path)
    assert states(loaded) == states(saved)
