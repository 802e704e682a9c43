"""Many seeded cases of one thing, none of which may end but in success or an error of graphc."""

import signal
import traceback
from contextlib import contextmanager
from random import Random

from graphc.errors import GraphcError

SECONDS = 20
"""A case that computes longer hangs."""

WAITING_SECONDS = 600
"""A case that takes longer, by the clock, waits for something that does not come."""


class HangError(BaseException):
    """A case ran into an alarm; no handler of exceptions in the code catches it."""


@contextmanager
def alarm():
    """Raise `HangError` inside after `SECONDS` of computing, or `WAITING_SECONDS`."""

    def ring(*_):
        raise HangError(f"over {SECONDS} s of computing, or {WAITING_SECONDS} s")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, WAITING_SECONDS),
    )
    before = [signal.signal(number, ring) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def failures(what, count, case):
    """What went wrong in `count` cases, as texts; and how many got through.

    `case` takes a `Random` of the case's own. It may raise a `GraphcError`, nothing else.
    """
    wrong, passed = [], 0
    for number in range(count):
        try:
            with alarm():
                case(Random(f"{what} {number}"))
            passed += 1
        except GraphcError as error:
            str(error)
        except (Exception, HangError) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            wrong.append(f"{what} {number}: {type(error).__name__} at {place}: {error}"[:300])
    return wrong, passed


def check(what, count, case):
    """Assert that no case goes wrong, and that some get through."""
    wrong, passed = failures(what, count, case)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])
    assert 0 < passed < count
