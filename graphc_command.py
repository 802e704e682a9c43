"""The command ``graphc``, which Ctrl-C ends with a line, also while the package is imported."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

CODE = 130
"""The exit code after Ctrl-C."""

_noted: list[int] = []
"""The signals that were received while the command ran."""


def main() -> int:
    """Run the command line; returns the exit code."""
    if sys.argv[1:] == ["--version"]:  # which needs nothing of the package
        from importlib.metadata import version

        sys.stdout.write(f"graphc {version('graphc-compiler')}\n")
        return 0
    # What modules in C make of an exception while they are imported is anything.
    signal.signal(signal.SIGINT, _leave)
    from graphc.cli import main as run

    signal.signal(signal.SIGINT, _interrupt)
    try:
        return run()
    except Exception:
        if not _noted:
            raise
        _say()
        return CODE
    finally:
        # All is done and told: while Python ends, it would die of the signal without a line.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _say()
    os._exit(CODE)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _noted.append(number)
    raise KeyboardInterrupt


def _say() -> None:
    sys.stderr.write("graphc: interrupted\n")
    sys.stderr.flush()
