"""The command line inside the test's own process."""

import functools
import io
import re
from contextlib import redirect_stderr, redirect_stdout

from graphc import cli
from graphc.cli import main
from graphc.cli.terminal import BELOW


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@functools.cache
def once(*arguments):
    """Run a command once for all tests that look at the same answer; it must write no file."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(arguments)
    return code, out.getvalue(), error.getvalue()


def parsed(monkeypatch, *arguments):
    """Return the options of a command line, which is parsed and not run."""
    own, found = cli._parser, []

    def parser():
        made = own()
        parse = made.parse_known_args

        def without_run(given):
            options, rest = parse(given)
            options.run = found.append
            return options, rest

        made.parse_known_args = without_run
        return made

    with monkeypatch.context() as patched:
        patched.setattr(cli, "_parser", parser)
        assert main(arguments) == 0
    (options,) = found
    return options


def unfolded(text):
    """What was printed with each sentence on one line."""
    return re.sub(rf"\n{BELOW}(?=\S)", " ", text)
