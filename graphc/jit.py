"""Numba where it is installed: compiled loops are plain functions without it.

Compiled or not, a loop makes the same decisions on the same numbers, so neither packings nor
sequences depend on it. A loop is compiled when it is first called.

What is kept names the classes of the tuples that a loop takes: after one has been moved, delete the
`*.nbi` files beside its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


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
