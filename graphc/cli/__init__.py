"""The command line: one file a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout

from graphc.cli import (
    batch,
    compare,
    devices,
    explain,
    ops,
    pack,
    plan,
    profile,
    remat,
    train,
    view,
)
from graphc.cli.progress import progress_shown
from graphc.errors import GraphcError
from graphc.files import is_standard_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 with a message on stderr for a user's mistake."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not (hasattr(options, "settings") and all(_may_follow(e, options) for e in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.settings += rest
    try:
        with _printout_apart(options), progress_shown():
            options.run(options)
    except GraphcError as error:
        print(f"graphc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        sys.stderr.close()
    except OSError as error:
        print(f"graphc: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _printout_apart(options: argparse.Namespace) -> AbstractContextManager[object]:
    """Print to standard error where the command's file goes to standard output."""
    paths = (getattr(options, name, None) for name in ("output", "save"))
    if any(path is not None and is_standard_output(path) for path in paths):
        return redirect_stdout(sys.stderr)
    return nullcontext()


def _may_follow(entry: str, options: argparse.Namespace) -> bool:
    """key=value may stand behind options, too, and so may the word of a command that takes one."""
    is_taken = "=" in entry or getattr(options, "takes_word", False)
    return is_taken and not entry.startswith("-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphc", description="Plan every byte of a training step before it runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        plan,
        compare,
        batch,
        view,
        explain,
        train,
        profile,
        remat,
        pack,
        ops,
        devices,
    ):
        command.add(commands)
    return parser
