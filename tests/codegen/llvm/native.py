"""Native kernels, compiled in this process and run on NumPy's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from graphc.codegen.llvm.kernel import NativeCall, NativeKernel
from graphc.codegen.node_calls import Buffer, Scratch
from graphc.ir.types import TensorType


@cache
def _begin():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _machine():
    """A machine for one engine, which takes it over."""
    _begin()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True
    )


_ENGINES = {}


def compiled(kernel: NativeKernel):
    """The kernel as a function."""
    if kernel.name not in _ENGINES:
        module = llvm.parse_assembly(kernel.text)
        machine = _machine()
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _ENGINES[kernel.name] = engine
    address = _ENGINES[kernel.name].get_function_address(kernel.name)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(address)


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
