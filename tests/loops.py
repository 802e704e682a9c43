"""Loops over cases in one test, where tests of their own would take longer than their checks."""

import contextlib


@contextlib.contextmanager
def case(name):
    """Name the case that an error inside belongs to."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise


def accepted(cases, make, error):
    """Return the names of cases that `make` takes without raising this error.

    `cases` maps a name to the arguments of `make`.
    """
    found = []
    for name, arguments in cases.items():
        with case(name), contextlib.suppress(error):
            make(*arguments)
            found.append(name)
    return found
