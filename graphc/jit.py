"""Numba where it is installed: compiled loops are plain functions without it.

Compiled or not, a loop makes the same decisions on the same numbers, so neither packings nor
sequences depend on it. A loop is compiled when it is first called, which takes seconds; where there
is little to do, `suited` gives it as it is written, and small networks are planned at once.

What is kept names the classes of the tuples that a loop takes: after one has been moved, delete the
`*.nbi` files beside its loops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

LITTLE = 128
"""Steps up to which a search is done sooner with loops as they are written than with compiled ones,
which have to be loaded even where they have been compiled before."""

_namespaces: dict[str, dict[str, Any]] = {}
"""By module its names, where compiled functions are as they are written."""


def compiled(function: Function) -> Function:
    """The function as machine code that is kept between runs, or as it is without numba."""
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # neither this folder nor the user's can hold the cache
        return cast(Function, njit(function))


def suited(function: Function, steps: int) -> Function:
    """A compiled function, or where it has few steps to do, the same as it is written."""
    return _as_written(function) if steps <= LITTLE else function


def _as_written(function: Function) -> Function:
    """The function without machine code, as are those that it calls."""
    written = getattr(function, "py_func", None)
    if written is None:
        return function
    names = _namespace(written.__module__)
    return cast(Function, FunctionType(written.__code__, names, written.__name__))


def _namespace(module: str) -> dict[str, Any]:
    if module not in _namespaces:
        # Entered before it is complete: functions of modules may call one another.
        names = _namespaces[module] = dict(vars(sys.modules[module]))
        names |= {name: _as_written(each) for name, each in names.items() if callable(each)}
    return _namespaces[module]
