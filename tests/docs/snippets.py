"""The code blocks of a page, in their order."""

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


def named(page):
    """A page's path from the root."""
    return str(page.relative_to(ROOT))
