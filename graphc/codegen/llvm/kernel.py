"""Kernels for a CPU as text, and calls of them.

A kernel is one function `void kernel(ptr pointers, ptr numbers, i64 first, i64 last)`. `pointers`
is an array of the addresses of buffers, `numbers` one of 64-bit integers: extents, strides in
elements, counts. It does the pieces `first` to `last` - 1 of a call; pieces do not depend on one
another, so they may run in any order and on any thread. What a piece computes is fixed by shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir

from graphc.codegen.memo import Memo
from graphc.codegen.node_calls import Buffer
from graphc.ir.types import TensorType

ENTRY = "@ENTRY@"
"""Stands for the function's name in a text that has none yet."""

POINTER, INDEX = ir.PointerType(), ir.IntType(64)
KERNEL = ir.FunctionType(ir.VoidType(), (POINTER, POINTER, INDEX, INDEX))


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """One function. Equal texts have equal names, different ones different names."""

    name: str
    text: str
    """LLVM IR of a module that defines the function."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A kernel on its buffers, with the numbers in which nodes of one structure differ."""

    kernel: NativeKernel
    pointers: tuple[Buffer, ...]
    numbers: tuple[int, ...]
    pieces: int
    work: int
    """About how many elements are touched, from which follows how many threads are worth it."""

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NativeCall:
        """This call on other buffers; buffers that are not named stay."""
        return replace(self, pointers=tuple(buffers.get(p, p) for p in self.pointers))


@dataclass(frozen=True, slots=True)
class NativeCalls:
    """The calls of one node, in order, and the scratch tensors that they share.

    Scratch depends on the same as that of `NodeCalls`.
    """

    calls: tuple[NativeCall, ...]
    scratch: tuple[TensorType, ...] = ()

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NativeCalls:
        """These calls on other buffers; buffers that are not named stay."""
        return NativeCalls(tuple(call.on(buffers) for call in self.calls), self.scratch)


def kernel_of(op: str, structure: object, write: Callable[[Any], None]) -> NativeKernel:
    """The kernel that `write` writes into a builder, made once for each structure."""
    # By its text: equal numbers may differ in sign, as -0.0 and 0.0 do.
    return _KNOWN.get((op, repr(structure)), lambda: _written(op, write))


_KNOWN: Memo[NativeKernel] = Memo()


def _written(op: str, write: Callable[[Any], None]) -> NativeKernel:
    # A context of its own, as names of types are kept in it.
    module = ir.Module(context=ir.Context())
    function = ir.Function(module, KERNEL, ENTRY)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    write(builder)
    builder.ret_void()
    text = str(module)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"graphc_{op}_{digest}"
    return NativeKernel(name, text.replace(ENTRY, name))
