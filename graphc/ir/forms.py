"""Registry of writers: functions that write graphs and plans in a form such as ``html``.

Notebooks display graphs and plans by methods of these classes. The classes must not import the
modules that write them, so these modules register their functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[[Any], str])

_WRITERS: dict[tuple[type, str], Callable[[Any], str]] = {}


def writes(kind: type, form: str) -> Callable[[F], F]:
    """Return a decorator that registers the writer of a class in a form."""

    def enter(function: F) -> F:
        _WRITERS[kind, form] = function
        return function

    return enter


def written(subject: object, form: str) -> str:
    """Return the text of an object in a form, such as ``html``, from the registered writer."""
    return _WRITERS[type(subject), form](subject)
