"""Numba where it is installed: compiled loops are plain functions without it.

Compiled or not, a loop makes the same decisions on the same numbers, so neither packings nor
sequences depend on it. A loop is compiled when it is first called, which takes seconds; where there
is little to do, `suited` gives it as it is written.

What is kept names the classes of the tuples that a loop takes: after one has been moved, delete the
`*.nbi` files beside its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

LITTLE = 64
"""Steps up to which loops over sequences are sooner done as they are written than compiled ones are
loaded, even where those have been compiled before."""

_written: dict[Callable[..., object], Callable[..., object]] = {}
"""By compiled function the same as it is written, with the constants of its first use."""


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
    if steps > LITTLE:
        return function
    if function not in _written:  # entered when it is complete, for threads
        _written[function] = _as_written(function, {})
    return cast(Function, _written[function])


def _as_written(function: Any, known: dict[Any, Any]) -> Any:
    """The function without machine code, as are those that it calls and that are not `known`."""
    written = getattr(function, "py_func", None)
    if written is None:
        return function
    if written not in known:
        names = dict(written.__globals__)
        known[written] = FunctionType(
            written.__code__, names, written.__name__, written.__defaults__, written.__closure__
        )
        known[written].__kwdefaults__ = written.__kwdefaults__
        # Only now, for functions may call one another.
        for name, each in written.__globals__.items():
            if hasattr(each, "py_func"):
                names[name] = _as_written(each, known)
    return known[written]
