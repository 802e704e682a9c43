"""Output of commands, with control characters escaped to protect the terminal."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from graphc.errors import escaped

WIDTH = 80
"""Number of columns of a command's output."""

BELOW = " " * 6
"""Indentation of wrapped lines; it is deeper than the indentation of list items."""

LONGEST_WORD = 200
"""Words of at least this many characters are truncated in errors."""


INFEASIBLE = 3
"""Exit code if nothing fits into a budget, capacity or GPU; with --json, an object is printed."""


def say(*parts: object, end: str = "\n") -> None:
    """Print to standard output, with spaces between the parts."""
    sys.stdout.write(escaped(" ".join(map(str, parts)) + end))


def tell(sentences: Iterable[str], below: str = BELOW) -> None:
    """Print sentences, each on a new line, wrapped to `WIDTH` columns."""
    for sentence in sentences:
        say(textwrap.fill(sentence, WIDTH, subsequent_indent=below, break_on_hyphens=False))


def complain(message: object, command: str = "graphc") -> None:
    """Print a message to standard error, with very long words truncated."""
    text = re.sub(
        rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][: LONGEST_WORD // 2]}...", str(message)
    )
    sys.stderr.write(f"{command}: {escaped(text)}\n")


class Console(rich.console.Console):
    """rich's console for tables and colors, with escaped text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.push_render_hook(_Escaping())


class _Escaping(RenderHook):
    """A rich hook that escapes control characters in everything that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return the renderables wrapped in `_Escaped`."""
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """A wrapper of a rich renderable that escapes its text, but not colors and control codes."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(
        self, console: rich.console.Console, options: ConsoleOptions
    ) -> RenderResult:
        """Yield the segments of the wrapped renderable with escaped text."""
        for text, style, control in console.render(self._inner, options):
            yield Segment(text if control else escaped(text), style, control)
