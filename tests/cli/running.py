"""The command line inside the test's own process."""

import re

from graphc.cli import main
from graphc.cli.terminal import BELOW


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def unfolded(text):
    """What was printed with each sentence on one line."""
    return re.sub(rf"\n{BELOW}(?=\S)", " ", text)
