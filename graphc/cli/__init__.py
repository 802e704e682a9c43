"""The command line, with one module per command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout

import graphc
from graphc.cli import (
    audit,
    batch,
    buckets,
    compare,
    devices,
    explain,
    fit,
    models,
    ops,
    order,
    pack,
    plan,
    profile,
    ranks,
    remat,
    selftest,
    train,
    view,
)
from graphc.cli.models import with_flags
from graphc.cli.parser import Parser
from graphc.cli.plans import infeasible
from graphc.cli.progress import progress_shown
from graphc.cli.terminal import INFEASIBLE, complain, say
from graphc.errors import BudgetError, CapacityError, GraphcError, NonFiniteError, quoted
from graphc.files import is_standard_output
from graphc.runtime.ranks.world import end_all

NOT_FINITE = 4
"""Exit code if a run computes NaN or infinity."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, which is a shell's code for a process ended by SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The code is 0 for success, 1 for a failed check of `selftest` or `audit`, 2 for an error
    reported on stderr, 3 for a budget, capacity or GPU into which nothing fits, 4 for NaN or
    infinity in a run, and 130 for Ctrl-C.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    given = train.with_task(sys.argv[1:] if arguments is None else arguments)
    options, rest = parser.parse_known_args(given)
    if rest and not (hasattr(options, "settings") and all(_may_follow(e, options) for e in rest)):
        wrong = next((entry for entry in rest if not _may_follow(entry, options)), rest[0])
        has_settings = hasattr(options, "settings")
        rule = "is not of the form key=value" if has_settings else "is an unexpected argument"
        parser.error(f"{quoted(wrong)} {rule}")
    if rest:
        options.settings += rest
    if hasattr(options, "settings"):
        options.settings = with_flags(options)
    try:
        with _printout_apart(options), progress_shown():
            return options.run(options) or 0
    except (BudgetError, CapacityError) as error:
        if getattr(options, "json", False):
            say(json.dumps(infeasible(error, options), default=str))
        else:
            complain(error)
        return INFEASIBLE
    except GraphcError as error:
        complain(error)
        end_all()
        return NOT_FINITE if isinstance(error, NonFiniteError) else 2
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        sys.stderr.close()
    except OSError as error:
        complain(f"cannot write the output: {error.strerror or error}")
        end_all()
        return 2
    except MemoryError as error:
        told = f": {error}" if str(error) else ""
        complain(f"there is not enough memory{told}; try a smaller model, batch or problem")
        end_all()
        return 2
    except RecursionError:
        complain("the input is nested too deeply; reduce its nesting depth")
        end_all()
        return 2
    return 0


def _printout_apart(options: argparse.Namespace) -> AbstractContextManager[object]:
    """Print to standard error if the output file of the command is standard output."""
    paths = (getattr(options, name, None) for name in ("output", "save"))
    if any(path is not None and is_standard_output(path) for path in paths):
        return redirect_stdout(sys.stderr)
    return nullcontext()


def _may_follow(entry: str, options: argparse.Namespace) -> bool:
    """Return True if a command line entry may follow options.

    It may if it is key=value, or a word that the command accepts.
    """
    is_taken = "=" in entry or getattr(options, "takes_word", False)
    return is_taken and not entry.startswith("-")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="graphc", description="Plan every byte of a training step before it runs.")
    parser.add_argument("--version", action="version", version=f"graphc {graphc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        plan,
        compare,
        batch,
        buckets,
        view,
        explain,
        fit,
        ranks,
        train,
        profile,
        audit,
        remat,
        order,
        pack,
        models,
        ops,
        devices,
        selftest,
    ):
        command.add(commands)
    return parser
