"""What was worked out for a node serves all nodes that are like it.

A network has thousands of nodes and few that differ. Nothing that is kept here holds on to a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MOST_ENTRIES = 8192

Result = TypeVar("Result")


class Memo(Generic[Result]):
    """Keeps results by key. When there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Result] = {}

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result of that key, made if it is not known."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if len(self._known) >= MOST_ENTRIES:
                self._known.clear()
            self._known[key] = found
        return found
