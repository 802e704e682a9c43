"""oneDNN by ctypes: loading the library of the wheel, and calls with checked status.

Enumeration values are those of dnnl_types.h of version 3.2, the last version with a wheel that
needs only libgomp. Other versions are not used, because some of their values differ.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphc.errors import GraphcError

WHEEL, FILE = "onednn-cpu-gomp", "libdnnl.so.3"
VERSION = 3, 2
CPU_ENGINE, IN_ORDER = 1, 1

UNIMPLEMENTED = (2, 3)
"""The statuses of a descriptor for which the library has no primitive: invalid arguments, and
unimplemented."""
LAST_IMPLEMENTATION = 4
STATUS = {
    1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "last implementation",
    5: "runtime error", 6: "not required",
}  # fmt: skip

Pointer = ctypes.c_void_p


class OnednnError(GraphcError):
    """An error of oneDNN; the message includes its status."""


class Version(ctypes.Structure):
    """The C structure `dnnl_version_t`, of which only the first fields are declared."""

    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int))


class Owned:
    """A handle of the library, which is destroyed when nothing refers to it.

    `needs` are handles that must live as long as this one, since the library reads them through it.
    """

    def __init__(self, library: Library, kind: str, handle: int) -> None:
        self.handle = handle
        self.needs: tuple[Owned, ...] = ()
        destroy = getattr(library.functions, f"dnnl_{kind}_destroy")
        weakref.finalize(self, destroy, Pointer(handle)).atexit = False


class Library:
    """The C functions of oneDNN, an engine for the CPU, and a stream."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self.functions = functions
        functions.dnnl_primitive_desc_query_md.restype = Pointer
        functions.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.engine = self.made("engine", CPU_ENGINE, ctypes.c_size_t(0))
        self.stream = self.made("stream", Pointer(self.engine.handle), IN_ORDER)
        self.execute = _address(functions.dnnl_primitive_execute)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raises `OnednnError` unless it succeeds."""
        _check(name, self.status(name, *arguments))

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function of the library and return its status."""
        return int(getattr(self.functions, name)(*arguments))

    def made(self, kind: str, *arguments: Any, how: str = "create") -> Owned:
        """Create a handle of a kind; raises `OnednnError` if the library fails."""
        found = self.offered(kind, f"dnnl_{kind}_{how}", *arguments, refusals=())
        assert found is not None
        return found

    def offered(
        self, kind: str, name: str, *arguments: Any, refusals: tuple[int, ...] = UNIMPLEMENTED
    ) -> Owned | None:
        """Create a handle by calling function `name`; return None for a status among `refusals`."""
        handle = Pointer()
        status = self.status(name, ctypes.byref(handle), *arguments)
        if status in refusals:
            return None
        _check(name, status)
        assert handle.value is not None
        return Owned(self, kind, handle.value)

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Make primitives that are created inside this context run on `count` threads."""
        before = self.functions.omp_get_max_threads()
        self.functions.omp_set_num_threads(count)
        try:
            yield
        finally:
            self.functions.omp_set_num_threads(before)


def _check(name: str, status: int) -> None:
    if status:
        raise OnednnError(f"oneDNN: {name} failed: {STATUS.get(status, f'status {status}')}")


def _address(function: Any) -> int:
    found = ctypes.cast(function, Pointer).value
    assert found is not None
    return found


@functools.cache
def load_onednn() -> Library | None:
    """Load oneDNN from its wheel; None if it is missing, does not load or is not version 3.2."""
    try:
        files = importlib.metadata.files(WHEEL) or []
        path = next(file.locate() for file in files if file.name == FILE)
        functions = ctypes.CDLL(str(path))
    except (importlib.metadata.PackageNotFoundError, StopIteration, OSError):
        return None
    functions.dnnl_version.restype = ctypes.POINTER(Version)
    version = functions.dnnl_version().contents
    return Library(functions) if (version.major, version.minor) == VERSION else None
