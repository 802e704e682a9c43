"""The commands of docs/viewing.md run, and what it shows and names is there."""

import re
import shlex
from pathlib import Path

import pytest
from cli.running import run

from graphc.view.page import _template

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "viewing.md").read_text()


@pytest.mark.slow
def test_the_commands_run(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    written = set()
    for line in "".join(blocks).splitlines():
        program, *arguments = shlex.split(line)
        code, _, err = run(capsys, *arguments)
        assert (program, code, err) == ("graphc", 0, "")
        if "-o" in arguments:
            written.add(arguments[arguments.index("-o") + 1])
    assert written >= {"plan.html", "plan.png", "plan.trace.json", "plan.snapshot.pickle"}
    assert written <= {path.name for path in tmp_path.iterdir()}


def test_pictures_are_there_and_all_are_shown():
    shown = set()
    for document in (TEXT, *((DOCS / name).read_text() for name in ("pictures.md", "fit.md"))):
        shown |= set(re.findall(r"!\[.*?\]\((.*?)\)", document))
    assert len(shown) > 2
    for name in shown:
        assert (DOCS / name).read_bytes().startswith(b"\x89PNG")
    assert {DOCS / name for name in shown} == set((DOCS / "pictures").iterdir())


def test_keys_are_those_of_the_page():
    script = _template("page.js").split("const KEYS = {")[1].split("\n};")[0]
    keys = set(re.findall(r'(?:^|, |\{ ?|\n\s+)"?([\w/+=-]+)"?: (?:\(\)|\w+)', script))
    table = "".join(line for line in TEXT.splitlines() if line.startswith("| "))
    named = set(re.findall(r"`([^`])`", table)) | {"ArrowLeft", "ArrowRight", "ArrowUp"}
    assert {key for key in keys if len(key) == 1} - {"="} <= named
    assert {"m", "t", "d", "a", "f", "n", "p", "/"} <= keys
