"""Forms that graphs and plans are written in: each is made in a file of its own.

A graph has to show itself in a notebook, and a plan has to print itself. What they are must not
depend on how they are written, so the files that write them enter their functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[[Any], str])

_WRITERS: dict[tuple[type, str], Callable[[Any], str]] = {}


def writes(kind: type, form: str) -> Callable[[F], F]:
    """Decorator: the function writes objects of this class in this form."""

    def enter(function: F) -> F:
        _WRITERS[kind, form] = function
        return function

    return enter


def written(subject: object, form: str) -> str:
    """An object written in a form, such as ``html``, by the function that is entered for it."""
    return _WRITERS[type(subject), form](subject)
