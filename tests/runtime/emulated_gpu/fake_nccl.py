"""A library with NCCL's calls for ranks that are threads, whose GPUs are emulated.

Sums are in the order of ranks, as on CPUs, so that results can be compared bit for bit.
"""

import ctypes
import threading

import numpy as np

from graphc.runtime.gpu import nccl
from graphc.runtime.ranks import sums

NUMPY = {number: dtype.numpy for dtype, number in nccl.DATA_TYPES.items()} | {0: np.dtype(np.int8)}
INVALID_ARGUMENT, REMOTE_ERROR = 4, 6


class Function:
    """A call with ctypes' attributes; arguments become what the declared types make of them."""

    def __init__(self, name, work):
        self.name, self.work = name, work
        self.restype, self.argtypes = None, ()

    def __call__(self, *given):
        assert len(given) == len(self.argtypes), self.name
        return self.work(*given)


class FakeLibrary:
    """The library of one rank on its wire."""

    def __init__(self, wire):
        self.wire, self.scratch = wire, sums.Scratch(wire.size)
        self.calls, self.error = [], 0
        self.aborts, self.graphs_are_gone = threading.Semaphore(0), threading.Event()
        self.graphs_are_gone.set()
        for name in nccl.SIGNATURES:
            setattr(self, name, Function(name, getattr(self, f"_{name}")))

    def _ncclGetErrorString(self, status):  # noqa: N802 - NCCL's name
        return {INVALID_ARGUMENT: b"invalid argument", REMOTE_ERROR: b"remote error"}[status]

    def _ncclGetUniqueId(self, identity):  # noqa: N802
        ctypes.memset(ctypes.addressof(identity._obj), 7, 128)
        return 0

    def _ncclCommInitRank(self, handle, ranks, identity, rank):  # noqa: N802
        if bytes(identity) != b"\x07" * 128 or (rank, ranks) != (self.wire.rank, self.wire.size):
            return INVALID_ARGUMENT
        handle._obj.value = 1000 + rank
        return 0

    def _ncclCommGetAsyncError(self, handle, status):  # noqa: N802
        status._obj.value = self.error
        return 0

    def _ncclCommAbort(self, handle):  # noqa: N802
        # As NCCL does, which goes on when nothing captured exchanges by the connection any more.
        self.graphs_are_gone.wait()
        self.aborts.release()
        return 0

    def _array(self, address, count, kind):
        dtype = NUMPY[kind]
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, np.uint8).view(dtype)

    def _done(self, name, handle):
        assert handle.value == 1000 + self.wire.rank
        self.calls.append(name)
        return 0

    def _ncclAllReduce(self, x, y, count, kind, op, handle, stream):  # noqa: N802
        assert op == nccl.SUM
        out = self._array(y, count, kind)
        np.copyto(out, self._array(x, count, kind))
        sums.all_reduce(self.wire, self.scratch, out)()
        return self._done("all_reduce", handle)

    def _ncclReduceScatter(self, x, y, count, kind, op, handle, stream):  # noqa: N802
        assert op == nccl.SUM
        whole = self._array(x, count * self.wire.size, kind)
        sums.reduce_scatter(self.wire, self.scratch, whole, self._array(y, count, kind))()
        return self._done("reduce_scatter", handle)

    def _ncclAllGather(self, x, y, count, kind, handle, stream):  # noqa: N802
        whole = self._array(y, count * self.wire.size, kind)
        sums.all_gather(self.wire, self._array(x, count, kind), whole)()
        return self._done("all_gather", handle)

    def _ncclBroadcast(self, x, y, count, kind, root, handle, stream):  # noqa: N802
        out = self._array(y, count, kind)
        np.copyto(out, self._array(x, count, kind))
        sums.broadcast(self.wire, out, root)()
        return self._done("broadcast", handle)
