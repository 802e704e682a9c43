"""Progress: work that may take long reports what it is doing; whoever runs it may listen.

Nothing depends on who listens, so the same input gives the same plan with and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(doing: str) -> None:
    """Tell the listener, if there is one, what is being done: one line with the bounds so far."""
    listener = _listener.get()
    if listener is not None:
        listener(doing)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Let `listener` hear every report that is made within."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
