"""Kernels for a CPU as text, and calls of them.

A kernel is one function `void kernel(ptr pointers, ptr numbers, i64 first, i64 last)`. `pointers`
is an array of buffer addresses. `numbers` is an array of 64-bit integers: extents, strides in
elements, counts. A call runs the pieces `first` to `last` - 1. Pieces are independent, so they may
run in any order and on any thread. Shapes decide the work of each piece.
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
"""A placeholder for the function's name in a text that is not named yet."""

POINTER, INDEX = ir.PointerType(), ir.IntType(64)
KERNEL = ir.FunctionType(ir.VoidType(), (POINTER, POINTER, INDEX, INDEX))


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel function as LLVM IR. Equal texts have equal names, and different texts have
    different names."""

    name: str
    text: str
    """LLVM IR of a module that defines the function."""


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call of a kernel: its buffers, and its numeric arguments, such as extents and strides."""

    kernel: NativeKernel
    pointers: tuple[Buffer, ...]
    numbers: tuple[int, ...]
    pieces: int
    work: int
    """Approximate number of elements accessed, which decides the number of threads."""

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NativeCall:
        """Return this call with buffers replaced according to the mapping; buffers that it lacks
        stay."""
        return replace(self, pointers=tuple(buffers.get(p, p) for p in self.pointers))


@dataclass(frozen=True, slots=True)
class NativeCalls:
    """The calls of one node, in order, and the scratch tensors that they share.

    Scratch depends on types, attributes and orders of axes alone, as in `NodeCalls`.
    """

    calls: tuple[NativeCall, ...]
    scratch: tuple[TensorType, ...] = ()

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NativeCalls:
        """Return these calls with buffers replaced according to the mapping; buffers that it lacks
        stay."""
        return NativeCalls(tuple(call.on(buffers) for call in self.calls), self.scratch)


def kernel_of(op: str, structure: object, write: Callable[[Any], None]) -> NativeKernel:
    """Return the kernel whose code `write` emits to a builder; it is created once per structure."""
    # The key is the structure's text, because -0.0 equals 0.0.
    return _KNOWN.get((op, repr(structure)), lambda: _written(op, write))


_KNOWN: Memo[NativeKernel] = Memo()


def _written(op: str, write: Callable[[Any], None]) -> NativeKernel:
    # Each module has its own context, because a context keeps names of types.
    module = ir.Module(context=ir.Context())
    function = ir.Function(module, KERNEL, ENTRY)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    write(builder)
    builder.ret_void()
    text = str(module)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"graphc_{op}_{digest}"
    return NativeKernel(name, text.replace(ENTRY, name))
