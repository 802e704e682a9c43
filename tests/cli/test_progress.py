"""Progress on a real pseudo-terminal: there while a command works, gone when its answer comes."""

import io
import os
import pty
import re
import select
import sys
import threading

import pytest
from cli.running import run

from graphc.cli import main, progress
from graphc.progress import heard_by, report

SLOW_MODEL = """
import pathlib, threading
import graphc
from graphc.progress import report

def build(go="", seconds=60):
    report("looking for the [bold] needle")
    waited = threading.Event()
    for _ in range(seconds * 20):  # until the reader of the terminal has seen the line
        if pathlib.Path(go).exists():
            break
        waited.wait(0.05)
    return graphc.mean(graphc.relu(graphc.input("x", (4, 4))))
"""
QUICK = ["--optimizer", "none", "--json"]


def screen_after(written):
    """What stands on a terminal in the end, line by line, by the few controls that are used."""
    lines, row, column = [""], 0, 0
    for text in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r\n|\r|\n|[^\x1b\r\n]+", written):
        if text == "\r":
            column = 0
        elif text in ("\r\n", "\n"):
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif not text.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
        elif text == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", text):
            row -= int(text[2:-1] or 1)
            assert row >= 0
        else:
            assert text[-1] in "mlh", f"unknown control {text!r}"
    return [line.rstrip() for line in lines if line.strip()]


class Terminal:
    """A pseudo-terminal and all that is written to it."""

    def __init__(self):
        self.reader, writer = pty.openpty()
        self.file = os.fdopen(writer, "w")
        self.written = ""

    def read_until(self, wanted, seconds=60):
        """Read until `wanted` has been written, or all has; returns whether it was seen."""
        while wanted is None or wanted not in self.written:
            if not select.select([self.reader], [], [], seconds)[0]:
                return False
            try:
                part = os.read(self.reader, 65536)
            except OSError:  # Linux's end of a terminal that nobody writes to any more
                return False
            if not part:
                return False
            self.written += part.decode()
        return True

    def answer(self, wanted, go):
        """Create a file once something has been written, in a thread; then read to the end."""

        def read():
            if self.read_until(wanted):
                go.touch()
            self.read_until(None)

        thread = threading.Thread(target=read)
        thread.start()
        return thread


@pytest.fixture
def terminal(monkeypatch):
    """A terminal on which progress is shown without a delay."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    opened = Terminal()
    yield opened
    opened.file.close()
    os.close(opened.reader)


def streams(monkeypatch, stdout, stderr):
    """Replace both streams, in a test: pytest sets them anew after the fixtures."""
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)


@pytest.fixture
def slow_model(tmp_path):
    (tmp_path / "net.py").write_text(SLOW_MODEL)
    return [f"{tmp_path}/net.py:build", f"go={tmp_path}/go"], tmp_path / "go"


def test_progress_is_shown_on_a_terminal_and_cleared_before_the_answer(
    slow_model, terminal, monkeypatch
):
    """Both streams on one terminal: in the end, only the answer is on it."""
    model, go = slow_model
    streams(monkeypatch, terminal.file, terminal.file)
    reading = terminal.answer("looking for the [bold] needle", go)
    code = main(["plan", *model, *QUICK])
    terminal.file.close()
    reading.join()
    assert (code, go.exists()) == (0, True)
    (answer,) = screen_after(terminal.written)
    assert answer.startswith('{"model": ')


def test_progress_after_part_of_the_answer_is_shown_and_cleared(tmp_path, terminal, monkeypatch):
    streams(monkeypatch, terminal.file, terminal.file)
    go, waited = tmp_path / "go", threading.Event()
    reading = terminal.answer("looking for the rest", go)
    with progress.progress_shown():
        report("the first part")
        print("first")
        report("looking for the rest")
        while reading.is_alive() and not go.exists():
            waited.wait(0.01)
        print("last")
    terminal.file.close()
    reading.join()
    assert "first\r\n" in terminal.written.partition("looking for the rest")[0]
    assert go.exists()
    assert screen_after(terminal.written) == ["first", "last"]


def test_progress_is_on_standard_error_alone(slow_model, terminal, monkeypatch):
    model, go = slow_model
    out = io.StringIO()
    streams(monkeypatch, out, terminal.file)
    reading = terminal.answer("needle", go)
    code = main(["plan", *model, *QUICK])
    terminal.file.close()
    reading.join()
    assert (code, go.exists()) == (0, True)
    assert out.getvalue().startswith('{"model": ')
    assert "needle" not in out.getvalue()
    assert screen_after(terminal.written) == []


def test_nothing_is_shown_where_standard_error_is_no_terminal(slow_model, capsys, monkeypatch):
    model, _ = slow_model
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = run(capsys, "plan", *model, "seconds=1", *QUICK)
    assert (code, err) == (0, "")
    assert "needle" not in out


def test_a_command_is_silent_for_the_first_seconds(slow_model, terminal, monkeypatch):
    """A command that ends before the delay has written nothing at all."""
    model, go = slow_model
    go.touch()
    out = io.StringIO()
    streams(monkeypatch, out, terminal.file)
    monkeypatch.setattr(progress, "DELAY_SECONDS", 60)
    assert main(["plan", *model, *QUICK]) == 0
    terminal.file.close()
    assert out.getvalue().startswith('{"model": ')
    terminal.read_until(None)
    assert terminal.written == ""


def test_stages_of_planning_are_reported(capsys):
    heard = []
    with heard_by(heard.append):
        code, _, _ = run(capsys, "plan", "mlp", "layers=2", "hidden=8", "inputs=8", "--json")
    assert code == 0
    assert "planning none, packed: training-step" in heard
    assert heard.index("planning none, packed: training-step") < heard.index(
        "planning none, packed: order"
    )
