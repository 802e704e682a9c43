"""What commands print: text in which nothing steers the terminal that shows it."""

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
"""The columns of what a command prints."""

BELOW = " " * 6
"""What the rest of a sentence stands behind: more than begins any sentence of a list."""

LONGEST_WORD = 200
"""The most characters without a space that a complaint shows in one piece."""


def say(*parts: object, end: str = "\n") -> None:
    """Print to standard output, with spaces between the parts."""
    sys.stdout.write(escaped(" ".join(map(str, parts)) + end))


def tell(sentences: Iterable[str], below: str = BELOW) -> None:
    """Print sentences, each from a line of its own on, folded to the columns of a command."""
    for sentence in sentences:
        say(textwrap.fill(sentence, WIDTH, subsequent_indent=below, break_on_hyphens=False))


def complain(message: object, command: str = "graphc") -> None:
    """Print a message to standard error; of very long words only the beginning."""
    text = re.sub(
        rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][: LONGEST_WORD // 2]}...", str(message)
    )
    sys.stderr.write(f"{command}: {escaped(text)}\n")


class Console(rich.console.Console):
    """rich's console, for tables and colours, with what stands in them escaped."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.push_render_hook(_Escaping())


class _Escaping(RenderHook):
    """Puts everything that a console prints in an `_Escaped`."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same things to print, escaped."""
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """Something to print whose text is escaped; colours and rich's own controls are not text."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(
        self, console: rich.console.Console, options: ConsoleOptions
    ) -> RenderResult:
        """Yield the pieces of what is inside."""
        for text, style, control in console.render(self._inner, options):
            yield Segment(text if control else escaped(text), style, control)
