"""docs/reading-a-plan.md and docs/parallel.md show what graphc prints."""

import re
from pathlib import Path

import pytest

from graphc.cli import main

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "reading-a-plan.md").read_text()
SHOWN = re.findall(
    r"^\$ graphc (.*)\n((?:[^$`].*\n)+)", TEXT + (DOCS / "parallel.md").read_text(), re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_commands_print_the_lines_of_the_page(capsys, command, shown):
    assert main(command.split()) == (3 if shown.startswith("needs") else 0)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    head, *later = ([line.rstrip() for line in part.splitlines()] for part in shown.split("...\n"))
    assert lines[: len(head)] == head
    for part in later:  # "..." stands for lines that are left out
        assert part[0] in lines
        start = lines.index(part[0])
        assert lines[start : start + len(part)] == part


def test_there_are_commands():
    assert len(SHOWN) >= 4
