"""Where a command's file goes: through symbolic links, into pipes, to standard output."""

import json
import os
import stat
import sys
import threading
from contextlib import contextmanager

import pytest
from cli.running import run

from graphc import load_plan
from graphc.cli import main
from graphc.planner.pack.csv_file import read_buffers

SMALL = ["mlp", "layers=1", "batch=4", "hidden=8"]
CSV = "id,lower,upper,size\na,0,3,4\nb,3,9,4\n"
COMMANDS = {
    "plan": (["plan", *SMALL, "-o"], ".json", b"{"),
    "frontier": (["plan", *SMALL, "--frontier", "-o"], ".png", b"\x89PNG"),
    "view": (["view", *SMALL, "-o"], ".html", b"<!doctype html>"),
    "compare": (["compare", *SMALL, "-o"], ".png", b"\x89PNG"),
    "profile": (["profile", *SMALL, "--repeat", "1", "--output"], ".json", b"{"),
    "pack": (["pack", "in.csv", "-o"], ".csv", b"id,"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text(CSV)
    return tmp_path


def arguments_of(name):
    arguments, suffix, begin = COMMANDS[name]
    if suffix == ".png":
        pytest.importorskip("matplotlib")
    return arguments, suffix, begin


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_writes_through_a_symlink_and_ends_with_the_name_of_its_file(
    capsys, folder, name
):
    arguments, suffix, begin = arguments_of(name)
    (folder / "disk").mkdir()
    (folder / "disk" / "old").touch(mode=0o600)
    link = folder / f"latest{suffix}"
    link.symlink_to("disk/old")
    code, text, error = run(capsys, *arguments, link.name)
    assert (code, error) == (0, "")
    assert text.splitlines()[-1].endswith(f"written to {link.name}")
    assert os.readlink(link) == "disk/old"
    assert (folder / "disk" / "old").read_bytes().startswith(begin)
    assert [path.name for path in (folder / "disk").iterdir()] == ["old"]
    if name in ("plan", "compare", "pack"):
        code, text, error = run(capsys, *arguments, f"out{suffix}", "--json")
        assert (code, error) == (0, f"graphc: written to out{suffix}\n")
        json.loads(text)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name in ("plan", "view", "compare", "pack") else [pytest.mark.slow]
        )
        for name in COMMANDS
    ],
)
def test_a_command_writes_into_a_fifo_of_any_name(capsys, folder, name):
    arguments, _, begin = arguments_of(name)
    fifo, read = folder / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    code, _, error = run(capsys, *arguments, "fifo")
    assert (code, error) == (0, "")
    reader.join()
    assert read[0].startswith(begin)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


@pytest.fixture
def stdout(folder):
    """As /dev/stdout is, which a root who runs faulty code would lose."""
    (folder / "stdout").symlink_to("/proc/self/fd/1")
    return "stdout"


@contextmanager
def standard_output(monkeypatch, file):
    """Make a file the standard output of this process, of its descriptor as of `sys.stdout`."""
    before = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        with monkeypatch.context() as patched, open(1, "w", closefd=False) as stream:
            patched.setattr(sys, "stdout", stream)
            yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def test_a_plan_on_standard_output_is_all_that_a_pipe_gets(capfd, folder, stdout, monkeypatch):
    reader, writer = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True))
    got = []
    reading = threading.Thread(target=lambda: got.append(reader.read()), daemon=True)
    reading.start()
    with writer, standard_output(monkeypatch, writer):
        assert main(["plan", *SMALL, "-o", stdout]) == 0
    reading.join()
    reader.close()
    (folder / "plan.json").write_text(got[0])
    assert load_plan(folder / "plan.json").arena_bytes > 0
    assert "arena" in capfd.readouterr().err  # the printout


def test_a_plan_on_standard_output_goes_behind_what_a_file_holds(
    capfd, folder, stdout, monkeypatch
):
    with open(folder / "out", "w") as out:
        out.write('"before"\n')
        out.flush()
        with standard_output(monkeypatch, out):
            assert main(["plan", *SMALL, "--json", "-o", stdout]) == 0
    before, plan = (folder / "out").read_text().split("\n", 1)
    assert before == '"before"'
    assert json.loads(plan)["format"] == "graphc.plan"


def test_offsets_on_standard_output_can_be_read_again(capfd, folder, stdout, monkeypatch):
    with open(folder / "out.csv", "w") as out, standard_output(monkeypatch, out):
        assert main(["pack", "in.csv", "-o", stdout]) == 0
    assert set(read_buffers("out.csv").pinned) == {0, 1}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(capsys, folder, name):
    arguments, suffix, _ = arguments_of(name)
    code, text, error = run(capsys, *arguments, f"missing/out{suffix}")
    assert (code, text) == (2, "")
    assert f"cannot save to 'missing/out{suffix}': No such file or directory" in error
