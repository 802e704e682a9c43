"""NCCL by ctypes: collectives between ranks that have a GPU each.

Signatures and numbers are those of nccl.h, unchanged since NCCL 2.10. All ranks together create a
communicator once. A step makes one call for a collective, with addresses in the arena and the
stream, so it can be captured into a CUDA graph.

NCCL chooses the rings and trees of a sum, and rounds 16-bit sums at every rank. The bits are the
same in every run of the same plan on the same machines. They differ from those on CPUs, which sum
in the order of ranks (`graphc.runtime.ranks.sums`).
"""

from __future__ import annotations

import _thread
import ctypes
import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from graphc.errors import DependencyError, RanksError, to_install
from graphc.ir.graph import Value
from graphc.ir.types import DType, bfloat16, float16, float32, float64
from graphc.runtime.gpu.bind import BoundExchange

IDENTITY_BYTES = 128

SUM = 0
"""The value `ncclSum` of `ncclRedOp_t`."""

SUCCESS, IN_PROGRESS = 0, 7
"""The values of `ncclResult_t` that are not errors."""

SPINS = 1000
"""The number of polls of a step before the thread sleeps between polls."""

NAP = 5e-5
"""Seconds that the thread sleeps between polls."""

CURE = "set NCCL_DEBUG=INFO to print NCCL's log; restart all ranks from the last checkpoint"

CHAR = 0
"""The value `ncclInt8` of `ncclDataType_t`, for collectives that only move bytes."""

DATA_TYPES: Mapping[DType, int] = {float16: 6, float32: 7, float64: 8, bfloat16: 9}
"""Dtype → the value of `ncclDataType_t`, for sums."""


class Identity(ctypes.Structure):
    """The C structure `ncclUniqueId`, which identifies the ranks of one communicator."""

    _fields_ = (("internal", ctypes.c_char * IDENTITY_BYTES),)


_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

SIGNATURES: Mapping[str, tuple[type[Any], tuple[Any, ...]]] = {
    "ncclGetErrorString": (ctypes.c_char_p, (_int,)),
    "ncclGetUniqueId": (_int, (ctypes.POINTER(Identity),)),
    "ncclCommInitRank": (_int, (ctypes.POINTER(_pointer), _int, Identity, _int)),
    "ncclCommGetAsyncError": (_int, (_pointer, ctypes.POINTER(_int))),
    "ncclCommAbort": (_int, (_pointer,)),
    "ncclAllReduce": (_int, (_pointer, _pointer, _size, _int, _int, _pointer, _pointer)),
    "ncclReduceScatter": (_int, (_pointer, _pointer, _size, _int, _int, _pointer, _pointer)),
    "ncclAllGather": (_int, (_pointer, _pointer, _size, _int, _pointer, _pointer)),
    "ncclBroadcast": (_int, (_pointer, _pointer, _size, _int, _int, _pointer, _pointer)),
}
"""Function → the types of its result and its arguments."""


class Nccl:
    """The NCCL library, loaded by ctypes."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, list(arguments)

    def new_identity(self) -> bytes:
        """Create the identity that rank 0 sends to the other ranks to connect them."""
        identity = Identity()
        self.call("ncclGetUniqueId", ctypes.byref(identity))
        return bytes(identity)

    def connected(self, identity: bytes, rank: int, ranks: int, time_limit: float) -> Communicator:
        """Connect the active GPU of this rank with those of all other ranks.

        Blocks until all ranks have called it. A step is aborted after `time_limit` seconds.
        """
        handle = _pointer()
        ours = Identity.from_buffer_copy(identity)
        self.call("ncclCommInitRank", ctypes.byref(handle), ranks, ours, rank)
        return Communicator(self, handle, rank, time_limit)

    def error_of(self, handle: ctypes.c_void_p) -> str:
        """Return the asynchronous error of a connection as text; empty if there is none."""
        status = _int()
        self.call("ncclCommGetAsyncError", handle, ctypes.byref(status))
        return "" if status.value in (SUCCESS, IN_PROGRESS) else self._told(status.value)

    def abort(self, handle: ctypes.c_void_p, process: int) -> None:
        """Begin to abort a connection with all its collectives in flight.

        `ncclCommDestroy` would wait for the other ranks. Does nothing in a forked child, whose copy
        of the connection belongs to its parent.
        """
        if os.getpid() == process:
            # NCCL waits until all captured graphs with its collectives are destroyed, so this runs
            # on a new thread. `threading` would take locks, and the garbage collector may call this
            # function while they are held.
            _thread.start_new_thread(self._abort, (handle,))

    def _abort(self, handle: ctypes.c_void_p) -> None:
        with suppress(RanksError):
            self.call("ncclCommAbort", handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raises `RanksError` unless it returns 0."""
        status = getattr(self._library, name)(*arguments)
        if status != SUCCESS:
            raise RanksError(f"{name} of NCCL failed: {self._told(status)}. {CURE}")

    def _told(self, status: int) -> str:
        told: str = self._library.ncclGetErrorString(status).decode()
        return told


class Communicator:
    """The connection of a rank with all others.

    A rank cannot detect which other rank is late. So `wait` aborts the whole connection if an error
    occurs or `time_limit` seconds have passed.
    """

    def __init__(self, nccl: Nccl, handle: ctypes.c_void_p, rank: int, time_limit: float) -> None:
        self._nccl, self._handle = nccl, handle
        self.rank, self.time_limit = rank, time_limit
        self._given_up = ""
        self._close = weakref.finalize(self, nccl.abort, handle, os.getpid())
        self._close.atexit = False  # CUDA has shut down by then

    def require(self) -> None:
        """Raise `RanksError` if the connection has been aborted."""
        if self._given_up:
            raise RanksError(self._given_up)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for work on the GPU that may include collectives; raises `RanksError`."""
        self.require()
        for _ in range(SPINS):
            if is_done():
                return
        until = time.monotonic() + self.time_limit
        while not is_done():
            error = self._nccl.error_of(self._handle)
            if error:
                self._give_up(
                    f"rank {self.rank} lost its connection to the other GPUs: {error}. {CURE}"
                )
            if time.monotonic() > until:
                self._give_up(
                    f"rank {self.rank} waited {self.time_limit:g} s for a step on GPUs; another "
                    f"rank has exited or hangs, or a step takes longer than rank_timeout. {CURE}"
                )
            time.sleep(NAP)

    def _give_up(self, why: str) -> NoReturn:
        self._given_up = why
        self._close()
        raise RanksError(why)

    def run(self, call: BoundExchange, stream: int) -> None:
        """Enqueue a collective."""
        self.require()
        exchange, ends = call.exchange, (self._handle, stream)
        assert isinstance(exchange.x, Value)
        assert isinstance(exchange.y, Value)
        x, y = exchange.x.type, exchange.y.type
        match exchange.kind:
            case "all_reduce":
                how = x.elements, DATA_TYPES[x.dtype], SUM
                self._nccl.call("ncclAllReduce", call.x, call.y, *how, *ends)
            case "reduce_scatter":
                how = y.elements, DATA_TYPES[x.dtype], SUM
                self._nccl.call("ncclReduceScatter", call.x, call.y, *how, *ends)
            case "all_gather":
                self._nccl.call("ncclAllGather", call.x, call.y, x.bytes, CHAR, *ends)
            case _:
                root = exchange.root
                self._nccl.call("ncclBroadcast", call.x, call.y, x.bytes, CHAR, root, *ends)


def load_nccl() -> Nccl:
    """Load NCCL from its wheel or from the system; raises `DependencyError` if it is not found."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return Nccl(ctypes.CDLL(str(load_nvidia_dynamic_lib("nccl").abs_path)))
    except (ImportError, RuntimeError, OSError):
        cure = to_install("nvidia-nccl-cu13 cuda-pathfinder", "gpu")
        raise DependencyError(f"NCCL, which connects GPUs, was not found; {cure}") from None
