"""Ctrl-C at any time is one line and exit code 130, and leaves files complete or not there."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.running import run

import graphc.cli.ops as ops

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import signal, sys, graphc_command as command; signal.signal(signal.SIGINT, command._leave); "
    "print('ready', flush=True); sys.exit(command.main())"
)
"""A command that is ready once it has done the first thing that it does, which takes no time."""


def interrupted(arguments, seconds):
    """Exit code and standard error of a command that gets Ctrl-C after so many seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


def check(arguments, seconds, folder, suffix):
    code, error = interrupted(arguments, seconds)
    if code == 0:  # it was done by then
        return
    assert code == 130, error
    assert error.startswith("graphc: interrupted")
    assert error.count("\n") == 1
    left = list(folder.iterdir())
    assert all(path.suffix == suffix for path in left), left
    for path in left:
        if suffix == ".json":
            json.loads(path.read_text())


@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.2, marks=pytest.mark.slow), 1.0])
def test_a_command_that_is_interrupted_says_so_in_a_line(tmp_path, seconds):
    arguments = ("plan", "lstm", "seq_len=400", "-o", str(tmp_path / "plan.json"))
    check(arguments, seconds, tmp_path, ".json")


def test_ctrl_c_while_python_ends_does_not_change_the_exit_code():
    at_exit = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT); "
    process = subprocess.run(
        [sys.executable, "-c", at_exit + PROGRAM, "ops"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_ctrl_c_at_a_random_time_leaves_files_complete_or_not_there(tmp_path, seed):
    chance = random.Random(seed)
    commands = [
        (("plan", "mlp", "layers=40", "-o", str(tmp_path / "plan.json")), ".json"),
        (("plan", "unet", "width=8", "image=32", "--recompute", "optimal",
          "-o", str(tmp_path / "plan.json")), ".json"),
        (("train", "digits", "--epochs", "5", "--save", str(tmp_path / "run.safetensors")),
         ".safetensors"),
        (("view", "mlp", "-o", str(tmp_path / "page.html")), ".html"),
    ]  # fmt: skip
    arguments, suffix = chance.choice(commands)
    check(arguments, chance.uniform(0, 3), tmp_path, suffix)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (MemoryError, 2),
                                             (RecursionError, 2)])  # fmt: skip
def test_an_interrupted_command_prints_one_line_and_exits_with_its_code(
    capsys, monkeypatch, error, code
):
    def stop(_):
        raise error

    monkeypatch.setattr(ops, "run", stop)
    found, out, told = run(capsys, "ops")
    assert (found, out, told.count("\n")) == (code, "", 1)
    assert told.startswith("graphc: ")


def test_the_command_of_the_package_is_the_one_that_catches_ctrl_c():
    import tomllib

    import graphc_command

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"graphc": "graphc_command:main"}
    assert project["tool"]["setuptools"]["py-modules"] == [graphc_command.__name__]
