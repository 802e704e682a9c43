"""Native kernels, compiled in this process and run on NumPy's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, NativeKernel
from graphc.codegen.node_calls import Buffer, Scratch
from graphc.ir.types import TensorType
from graphc.runtime.cpu.llvm import addresses


def compiled(kernel: NativeKernel):
    """The kernel as a function."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(addresses([kernel], None)[kernel.name])


class Native:
    """Runs native kernels where generated ones of another kind are run."""

    def run(self, found: NativeCalls, arrays, descending=False, cublas=None) -> None:
        """All calls in order, each from its first or from its last piece."""
        run(found.calls, arrays, found.scratch, backwards=descending)


def run(
    calls: Sequence[NativeCall],
    arrays: Mapping[Buffer, np.ndarray],
    scratch: Sequence[TensorType] = (),
    backwards: bool = False,
) -> None:
    """All calls in order, each piece by a call of its own."""
    rooms = [np.full(type.shape, 77, type.dtype.numpy) for type in scratch]
    given = {**arrays, **{Scratch(i): room for i, room in enumerate(rooms)}}
    for call in calls:
        pointers = np.array([given[b].ctypes.data for b in call.pointers], np.uint64)
        numbers = np.array([*call.numbers, 0], np.int64)
        function = compiled(call.kernel)
        for piece in range(call.pieces)[:: -1 if backwards else 1]:
            function(pointers.ctypes.data, numbers.ctypes.data, piece, piece + 1)
