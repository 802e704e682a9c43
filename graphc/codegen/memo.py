"""Memoization of results that equal nodes share.

A network has thousands of nodes, but few different ones. Entries hold no reference to a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MOST_ENTRIES = 8192

Result = TypeVar("Result")


class Memo(Generic[Result]):
    """A cache of results by key, which is cleared when it has too many entries."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Result] = {}

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return the cached result of a key, computed by `make` on first use."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if len(self._known) >= MOST_ENTRIES:
                self._known.clear()
            self._known[key] = found
        return found
