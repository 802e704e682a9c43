"""Progress display of slow commands on the terminal, until their output begins."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from graphc.errors import escaped
from graphc.progress import heard_by

DELAY_SECONDS = 2.0
"""Delay before progress is shown; most commands end earlier."""


@contextmanager
def progress_shown() -> Iterator[None]:
    """Show reported progress after `DELAY_SECONDS`, if standard error is a terminal.

    The display is removed before any output and at the end. If work continues after output, it is
    shown again.
    """
    console = Console(stderr=True)
    # Rich treats a pipe as a terminal if FORCE_COLOR is set.
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield
        return
    display = _Display(console)
    answer = sys.stdout
    sys.stdout = _Answer(answer, display)
    try:
        with heard_by(display.tell):
            yield
    finally:
        sys.stdout = answer
        display.end()


class _Display:
    """A line with a spinner, the current work and the elapsed seconds."""

    def __init__(self, console: Console) -> None:
        self._console, self._lock = console, threading.Lock()
        self._wait()

    def _wait(self) -> None:
        """Wait for the delay, then show a new line."""
        text = TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        )
        # Standard output is not redirected, because it may be another file than the console's.
        self._bar = Progress(
            SpinnerColumn(), text, TimeElapsedColumn(),
            console=self._console, transient=True, redirect_stdout=False,
        )  # fmt: skip
        self._task = self._bar.add_task("planning", total=None)
        self._has_ended = False
        self._timer = threading.Timer(DELAY_SECONDS, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def tell(self, doing: str) -> None:
        """Show what the command is doing, on a new line if output has removed the display."""
        with self._lock:
            if self._has_ended:
                self._wait()
        self._bar.update(self._task, description=escaped(doing))

    def end(self) -> None:
        """Remove the progress line from the terminal."""
        self._timer.cancel()
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._bar.stop()

    def _begin(self) -> None:
        with self._lock:
            if not self._has_ended:
                self._bar.start()


class _Answer:
    """A wrapper of standard output that removes the display before each write."""

    def __init__(self, file: TextIO, display: _Display) -> None:
        self._file, self._display = file, display

    def write(self, text: str) -> int:
        """Remove the display and write the text."""
        self._display.end()
        return self._file.write(text)

    def flush(self) -> None:
        """Remove the display and flush, because the wrapped file may be written next."""
        self._display.end()
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
