"""The command line: one file a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from graphc.cli import compare, ops, plan, train
from graphc.errors import GraphcError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 with a message on stderr for a user's mistake."""
    options = _parser().parse_args(arguments)
    try:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphc", description="Plan every byte of a training step before it runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (plan, compare, train, ops):
        command.add(commands)
    return parser
