"""Compiled loops: numba if it is installed, else plain Python.

A loop makes the same decisions on the same numbers in both forms, so results do not depend on
numba. A loop is compiled by its first call, which takes seconds the first time on a machine. For
little work `suited` returns the plain function. numba itself is imported by the first compiled
call.

Machine code is stored in the user's cache, in a folder named after the sources of all loops. numba
refers to classes by module and name, and its machine code includes called loops of other modules.
So stored machine code becomes invalid when one of these sources changes.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

LITTLE = 64
"""For at most this many iterations, the plain loop is faster than loading machine code."""


class Loop:
    """A function over arrays that is compiled by its first call."""

    def __init__(self, function: FunctionType) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._compiled: Callable[..., Any] | None = None
        self._written: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)

    @property
    def compiled(self) -> Callable[..., Any]:
        """The machine code, or the plain function without numba."""
        if self._compiled is None:
            self._compiled = _with_numba(self)
        return self._compiled

    @property
    def written(self) -> Callable[..., Any]:
        """The plain function, which calls other loops in plain form."""
        if self._written is None:
            self._written = _linked(self, "_written", lambda function: function)
        return self._written

    @property
    def is_compiled(self) -> bool:
        """True once machine code has been loaded or generated."""
        return bool(getattr(self._compiled, "signatures", ()))


def compiled(function: Function) -> Function:
    """Return the function as a loop that is compiled by its first call."""
    return cast(Function, Loop(cast(FunctionType, function)))


def suited(function: Function, steps: int) -> Function:
    """Return a loop compiled, or its plain function for at most `LITTLE` steps."""
    assert isinstance(function, Loop), "only loops have two forms"
    return cast(Function, function.compiled if steps > LITTLE else function.written)


def _with_numba(loop: Loop) -> Callable[..., Any]:
    try:
        import numba
    except ImportError:
        return loop.written
    config: Any = numba.config
    if not config.CACHE_DIR and (folder := cache_folder()) is not None:
        config.CACHE_DIR = str(folder)
    is_kept = bool(config.CACHE_DIR)
    return _linked(loop, "_compiled", numba.njit(cache=True) if is_kept else numba.njit)


def _linked(
    loop: Loop, form: str, change: Callable[[FunctionType], Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a loop in compiled or plain form; the loops that it calls have the same form.

    `form` is the attribute that caches the result, and `change` converts a function to that form.
    The returned function has its own globals, in which the names of called loops refer to these
    forms.
    """
    known = getattr(loop, form)
    if known is not None:
        return cast(Callable[..., Any], known)
    function = loop.py_func
    names = dict(function.__globals__)
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    made = change(copy)
    setattr(loop, form, made)  # before the recursion, since loops may call each other
    for name in function.__code__.co_names:
        called = names.get(name)
        if isinstance(called, Loop):
            names[name] = _linked(called, form, change)
    return made


def cache_folder() -> Path | None:
    """Create and return the folder for machine code; None if it is not writable."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "graphc" / f"loops-{_digest(Path(__file__).parent)}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def _digest(package: Path) -> str:
    """Return a digest of the modules of a package that define loops."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + source + b"\0")
    return digest.hexdigest()[:16]
