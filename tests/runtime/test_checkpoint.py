import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
import safetensors
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
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind in ("folder", "pipe"):
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.mkdir()
    elif kind == "symlink to itself":
        path.unlink()
        path.symlink_to(path.name)
    elif kind in BITS:
        write_with_dtype(path, kind)


BITS = {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "C64": 64, "F99": 32}


def write_with_dtype(path, dtype):
    """Write a file anew with another dtype for one tensor, and zeros for all of them."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    end = 0
    for name in sorted(header.keys() - {"__metadata__"}):
        first, last = header[name]["data_offsets"]
        length = last - first
        if name == "layer0/bias":
            header[name]["dtype"], length = dtype, BITS[dtype] * 12 // 8
        header[name]["data_offsets"] = [end, end + length]
        end += length
    told = json.dumps(header).encode()
    path.write_bytes(len(told).to_bytes(8, "little") + told + bytes(end))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "another network",
            r"layer0/weight is float32\[13, 16\] in the file, but float32\[12, 16\]",
        ),
        ("another optimizer", "missing .*adam"),
        ("extra", "unknown more"),
        ("truncated", "cannot be read.*unchanged"),
        ("header only", "cannot be read"),
        ("not safetensors", "cannot be read"),
        ("missing", "there is no file"),
        ("folder", "cannot be read: Is a directory"),
        ("empty", "cannot be read as a safetensors file"),
        ("symlink to itself", "cannot be read: Too many levels of symbolic links"),
        ("pipe", "cannot be read: it is not a regular file"),
        ("F8_E4M3", r"layer0/bias is F8_E4M3\[12\] in the file, but float32\[12\]"),
        ("F8_E5M2", r"layer0/bias is F8_E5M2\[12\] in the file, but float32\[12\]"),
        ("F8_E8M0", r"layer0/bias is F8_E8M0\[12\]"),
        ("F4", r"layer0/bias is F4\[12\]"),
        ("F6_E2M3", r"layer0/bias is F6_E2M3\[12\]"),
        ("C64", r"layer0/bias is C64\[12\]"),
        ("F99", "cannot be read as a safetensors file"),
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


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (2, "unknown extra0, extra1. The"),
        (3, "unknown extra0, extra1, extra2. The"),
        (4, "unknown extra0, extra1, extra2 and 1 more. The"),
        (6, "unknown extra0, extra1, extra2 and 3 more. The"),
    ],
)
def test_an_error_lists_three_names_and_counts_the_rest(tmp_path, count, told):
    path, run = tmp_path / "run.safetensors", program()
    run.save(path)
    save_file({**load_file(path), **{f"extra{i}": np.zeros(3) for i in range(count)}}, path)
    with pytest.raises(CheckpointError) as error:
        run.load(path)
    assert told in str(error.value)


def test_errors_explain_how_inference_loads_a_training_checkpoint(tmp_path):
    x = g.input("x", (2, 3))
    y = g.linear(x, 4, name="out")
    trained = g.compile(g.mean(y * y), optimizer=g.optim.Adam(0.1))
    trained.step(x=np.ones((2, 3), np.float32))
    path = tmp_path / "run.safetensors"
    trained.save(path)
    program = g.compile(outputs={"y": y})
    with pytest.raises(CheckpointError) as caught:
        program.load(path)
    advice = str(caught.value).partition("from the file: ")[2]
    exec(advice, {"safetensors": safetensors, "path": path, "program": program})
    for name in ("out/weight", "out/bias"):
        np.testing.assert_array_equal(program.states[name], trained.states[name])

    other = g.compile(outputs={"y": g.linear(x, 5, name="out")})
    with pytest.raises(CheckpointError) as caught:
        other.load(path)
    assert "from the file" not in str(caught.value)


def test_an_unwritable_path_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(CheckpointError, match="cannot write"):
        program().save(tmp_path / "no" / "folder" / "run.safetensors")
    (tmp_path / "taken").mkdir()
    with pytest.raises(CheckpointError, match="nothing was written"):
        program().save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 300, "cannot be read: File name too long"),
        ("run.safetensors/more", "cannot be read: Not a directory"),
        ("a\0b", "cannot be read: embedded null byte"),
        ("none", "there is no file"),
    ],
)
def test_a_name_that_cannot_be_read_is_refused_with_the_cause(tmp_path, name, message):
    target = program()
    target.save(tmp_path / "run.safetensors")
    for read in (target.load, g.read_notes):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path / name)
        with pytest.raises(CheckpointError, match="a path must be a string or path object"):
            read(b"run.safetensors")


def test_a_file_that_this_user_may_not_read_is_refused_with_the_cause(tmp_path, monkeypatch):
    """As another user than root would find it."""

    def refuse(path, flags):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    target = program()
    target.save(tmp_path / "run.safetensors")
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "open", refuse)
    else:
        (tmp_path / "run.safetensors").chmod(0)
    for read in (target.load, g.read_notes):
        with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
            read(tmp_path / "run.safetensors")


def test_too_many_open_files_are_named_as_the_cause(tmp_path):
    target, path = program(), tmp_path / "run.safetensors"
    target.save(path)
    content = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # All that is open now may stay, and nothing more can be opened.
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        for use in (target.load, target.save, g.read_notes):
            with pytest.raises(CheckpointError, match="Too many open files"):
                use(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert path.read_bytes() == content
    target.load(path)


NOTES = [
    {"format": "mine"},
    {"format": "graphc"},
    {"format": "", "note:format": "a", "note:note:format": "b", "note": "c", "note:": "d"},
    {"": "", "\0": "\0", "__metadata__": "{}", 'a\n\u2028"\\': "\x1b[31mé\U0001f40d"},
    {"formats": "x", "xformat": "y", "note:formats": "z"},
]


@pytest.mark.parametrize("notes", NOTES)
def test_notes_of_any_name_and_text_come_back(tmp_path, notes):
    path = tmp_path / "run.safetensors"
    target = program()
    target.save(path, notes)
    assert g.read_notes(path) == notes
    target.load(path)


def test_a_note_of_a_file_that_something_else_wrote_is_not_lost(tmp_path):
    save_file({"w": np.zeros(3)}, tmp_path / "other", {"format": "pt", "epoch": "3"})
    assert g.read_notes(tmp_path / "other") == {"format": "pt", "epoch": "3"}


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"step": 3}, "notes must map names to strings, got 'step': 3"),
        ({3: "step"}, "notes must map names to strings"),
        (["step"], "notes must map names to strings"),
        ({"step": "\ud800"}, "cannot be saved.*surrogates not allowed"),
        ({"\ud800": "step"}, "cannot be saved.*surrogates not allowed"),
        ({"long": "x" * 100_000_001}, "cannot be saved.*header too large"),
    ],
    ids=["number", "name", "list", "surrogate", "surrogate in name", "too long"],
)
def test_notes_that_a_file_cannot_hold_are_refused_and_nothing_is_written(tmp_path, notes, message):
    with pytest.raises(CheckpointError, match=message):
        program().save(tmp_path / "run.safetensors", notes)
    assert list(tmp_path.iterdir()) == []


def test_a_state_of_the_name_that_notes_have_in_a_file_is_refused(tmp_path):
    loss = g.sum(g.parameter("__metadata__", (2,)))
    with pytest.raises(CheckpointError, match="rename the parameter"):
        g.compile(loss, optimizer=g.optim.SGD()).save(tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_saved_through_a_symlink_and_keeps_its_mode(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "run").touch(mode=0o600)
    (tmp_path / "latest").symlink_to("disk/run")
    first, second = program(), program()
    first.step(FEEDS)
    first.save(tmp_path / "latest")
    assert os.readlink(tmp_path / "latest") == "disk/run"
    assert stat.S_IMODE((tmp_path / "disk" / "run").stat().st_mode) == 0o600
    second.load(tmp_path / "latest")
    assert states(first) == states(second)


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
