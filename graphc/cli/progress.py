"""What a command that takes long is doing, on the terminal, until its answer comes."""

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
"""How long a command is silent: of most, nobody asks what they are doing."""


@contextmanager
def progress_shown() -> Iterator[None]:
    """Show what is reported within, after `DELAY_SECONDS`, where standard error is a terminal.

    It is gone before a byte of the answer, comes again where work goes on after it, and is gone at
    the end.
    """
    console = Console(stderr=True)
    # Rich takes a pipe for a terminal where FORCE_COLOR is set.
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
    """One line with a spinner, what is being done, and for how long, which leaves no trace."""

    def __init__(self, console: Console) -> None:
        self._console, self._lock = console, threading.Lock()
        self._wait()

    def _wait(self) -> None:
        """Show a new line after the delay."""
        text = TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        )
        # Standard output may be another file than this console's, so it is left as it is.
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
        """Show what is being done now, also behind a part of the answer."""
        with self._lock:
            if self._has_ended:
                self._wait()
        self._bar.update(self._task, description=escaped(doing))

    def end(self) -> None:
        """Remove the line."""
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
    """Standard output that ends the display before it is written to."""

    def __init__(self, file: TextIO, display: _Display) -> None:
        self._file, self._display = file, display

    def write(self, text: str) -> int:
        """Write the text, with nothing of the display left on the terminal."""
        self._display.end()
        return self._file.write(text)

    def flush(self) -> None:
        """Flush, with the display ended: the file behind this one is about to be written to."""
        self._display.end()
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
