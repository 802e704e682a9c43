"""The commands of docs/viewing.md run, and what it shows and names is there."""

import json
import re
import shlex
from pathlib import Path

import pytest
from cli.running import run

from graphc.view.page import _template

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "viewing.md").read_text()


def test_the_commands_run(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL):
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            code, _, err = run(capsys, *arguments)
            assert (program, code, err) == ("graphc", 0, "")


def test_pictures_are_there_and_all_are_shown():
    shown = set()
    for document in (TEXT, (DOCS / "pictures.md").read_text()):
        shown |= set(re.findall(r"!\[.*?\]\((.*?)\)", document))
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


def test_the_times_of_zooming_are_the_committed_ones():
    results = Path(__file__).parents[2] / "benchmarks" / "results" / "page_zoom.json"
    rows = json.loads(results.read_text())["rows"][1:]
    (told,) = re.findall(
        r"in (\d+) ms with ([\d,]+) buffers .*? in (\d+) ms with ([\d,]+), .*?"
        r"took (\d+) ms and (\d+) ms\. .*? has ([\d.]+) MB and is written in ([\d.]+) s",
        TEXT, re.DOTALL,
    )  # fmt: skip
    wanted = [f"{row[name]:,.0f}" for row in rows for name in ("median zoom ms", "buffers")]
    wanted += [f"{row['longest since wheel ms']:.0f}" for row in rows]
    assert list(told) == [*wanted, f"{rows[0]['page MB']:.1f}", f"{rows[0]['write seconds']:.1f}"]
