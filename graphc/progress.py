"""Progress reports of long computations to an optional listener.

Results do not depend on the listener: the same input gives the same plan with and without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(doing: str) -> None:
    """Send the listener, if any, one line about the current work and the bounds so far."""
    listener = _listener.get()
    if listener is not None:
        listener(doing)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Send every report made inside this context to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
