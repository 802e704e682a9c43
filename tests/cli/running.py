"""The command line inside the test's own process."""

from graphc.cli import main


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
