"""Limits NumPy's BLAS to one thread, for kernels of many small products.

The threads of OpenBLAS wait for each other in every product. If other processes or oneDNN's threads
occupy the cores, each wait takes until a thread is scheduled again.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphc.forks import lock_across_forks

NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""Names of OpenBLAS's functions: in NumPy's wheels, and in packages of distributions."""

_LOCK = lock_across_forks()


class _Limit:
    """The number of callers that limit the threads, and the number of threads before the first."""

    callers = 0
    threads = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run NumPy's products on one thread inside this context; no effect with another BLAS.

    Products of other threads of the process are limited as well. The last of concurrent callers
    restores the number of threads.
    """
    functions = _functions()
    if functions is None:
        yield
        return
    get_threads, set_threads = functions
    with _LOCK:
        if _Limit.callers == 0:
            _Limit.threads = get_threads()
            set_threads(1)
        _Limit.callers += 1
    try:
        yield
    finally:
        with _LOCK:
            _Limit.callers -= 1
            if _Limit.callers == 0:
                set_threads(_Limit.threads)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return OpenBLAS's functions that get and set the number of threads; None without OpenBLAS."""
    found = importlib.util.find_spec("numpy._core._multiarray_umath")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)  # finds the functions of libraries that this one uses
    except OSError:
        return None
    for name in NAMES:
        if hasattr(library, name.format("set_num_threads")):
            return (
                getattr(library, name.format("get_num_threads")),
                getattr(library, name.format("set_num_threads")),
            )
    return None
