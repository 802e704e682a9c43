"""The code blocks of a page, in their order, and the tables of pages."""

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^ *\*Not run by the tests: [^*]{10,}\*\n\n\Z", re.MULTILINE)


class Snippet(NamedTuple):
    """A block: its language, text, first line in the page, and whether it may run."""

    language: str
    text: str
    line: int
    runs: bool


def snippets(page):
    """The blocks of a page."""
    text = page.read_text()
    return [
        Snippet(
            found[2],
            found[3],
            text.count("\n", 0, found.start(3)),
            NOT_RUN.search(text, 0, found.start()) is None,
        )
        for found in FENCE.finditer(text)
    ]


def commands(page):
    """The command lines of a page, each with the line that is shown below it."""
    found = []
    for snippet in snippets(page):
        if snippet.language in ("sh", "console") and snippet.runs:
            lines = snippet.text.splitlines()
            for line, below in zip(lines, [*lines[1:], ""], strict=True):
                if snippet.language == "sh" or line.startswith("$ "):
                    found.append((line.removeprefix("$ "), below))
    return found


def shown_commands(page):
    """Return the command lines of `graphc` on a page, also of blocks that are not run."""
    lines = [
        (snippet.language, line) for snippet in snippets(page) for line in snippet.text.splitlines()
    ]
    return [
        line.removeprefix("$ ")
        for language, line in lines
        if line.startswith("$ graphc ") or (language == "sh" and line.startswith("graphc "))
    ]


def output_of(snippet, namespace, path="net.py"):
    """Run a block of Python in this process; returns what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * snippet.line + snippet.text, path, "exec"), namespace)
    return printed.getvalue()


def table_after(mark, text):
    """Return the cells of the table below a mark, row by row, without its head."""
    lines = text.split(mark, 1)[1].strip().splitlines()
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def named(page):
    """A page's path from the root."""
    return str(page.relative_to(ROOT))
