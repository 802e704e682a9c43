"""The calls of one node: programs, kernel launches, BLAS products, collectives and copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from graphc.codegen.text.kernel import Kernel
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Scratch:
    """A placeholder for scratch tensor number `index` of a node."""

    index: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder for operand number `index` of a node, which counts inputs, then outputs."""

    index: int


Buffer = Value | Scratch | Slot
"""The tensor to which a pointer argument points."""

Argument = Buffer | int
"""An argument of a kernel: a pointer, or an unsigned 32-bit number."""


class Program:
    """A computation on buffers, independent of the kernels that a device has for it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of a kernel on `grid` blocks of `block` threads."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: int
    block: int

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Launch:
        """Return this launch with buffers replaced according to the mapping `buffers`."""
        given = tuple(a if isinstance(a, int) else buffers.get(a, a) for a in self.arguments)
        return Launch(self.kernel, given, self.grid, self.block)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand of a product: column-major with a leading dimension, one matrix per batch
    entry."""

    buffer: Buffer
    dtype: DType
    offset: int
    """Number of elements from the start of the buffer to the first matrix."""
    leading: int
    stride: int
    """Number of elements from one matrix of the batch to the next; 0 uses one matrix for all
    entries."""


Epilogue = Literal["none", "bias", "gelu", "bias_gelu", "sums"]
"""The epilogue of a product: the addition of a bias, then an activation, before the result is
stored; or the sums of the columns of op(second), stored in place of a bias."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """c = epilogue(alpha · op(first) · op(second) + beta · c), column-major, with op(first) (m, k)
    and op(second) (k, n)."""

    transpose_first: bool
    transpose_second: bool
    m: int
    n: int
    k: int
    first: Matrix
    second: Matrix
    c: Matrix
    beta: float
    batch: int
    compute: int
    epilogue: Epilogue = "none"
    """The operation that is applied to the product before it is stored."""
    bias: Buffer | None = None
    """The bias of an epilogue: m contiguous numbers of c's dtype, one per row. For the epilogue
    `sums`, n contiguous numbers that it writes, one per column."""
    alpha: float = 1.0
    of: int | None = None
    """The number of products of the node, if this call computes only `batch` of them; None if it
    computes all."""
    shared: tuple[bool, bool] | None = None
    """For the first and the second operand, true if all products of the node read the same matrix.
    None if this call computes all products; its strides then show whether a matrix is shared."""
    factors: tuple[Buffer, Buffer] | None = None
    """For 8-bit operands, a float32 by which the first is multiplied, and one for the second."""

    @property
    def all_batches(self) -> int:
        """The number of products of the node, over all of its calls."""
        return self.batch if self.of is None else self.of

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Gemm:
        """Return this product with buffers replaced according to the mapping `buffers`."""
        first, second, c = (
            replace(matrix, buffer=buffers.get(matrix.buffer, matrix.buffer))
            for matrix in (self.first, self.second, self.c)
        )
        bias = None if self.bias is None else buffers.get(self.bias, self.bias)
        factors = self.factors
        if factors is not None:
            factors = buffers.get(factors[0], factors[0]), buffers.get(factors[1], factors[1])
        return replace(self, first=first, second=second, c=c, bias=bias, factors=factors)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective operation among ranks, performed by a communication library; `kind` is the op's
    name."""

    kind: str
    ranks: int
    root: int
    x: Buffer
    y: Buffer

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Exchange:
        """Return this collective with buffers replaced according to the mapping `buffers`."""
        return replace(self, x=buffers.get(self.x, self.x), y=buffers.get(self.y, self.y))


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of `bytes` contiguous bytes from `x` to `y`, to the host or to the device."""

    to: Literal["host", "device"]
    bytes: int
    x: Buffer
    y: Buffer

    def on(self, buffers: Mapping[Buffer, Buffer]) -> HostCopy:
        """Return this copy with buffers replaced according to the mapping `buffers`."""
        return replace(self, x=buffers.get(self.x, self.x), y=buffers.get(self.y, self.y))


Call = Program | Launch | Gemm | Exchange | HostCopy


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node, in order, and the scratch tensors that they share.

    Scratch depends on the node's types and attributes, and on the order of its values' axes in
    memory. So it is known before memory is allocated.
    """

    calls: tuple[Call, ...]
    scratch: tuple[TensorType, ...] = ()

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NodeCalls:
        """Return these calls with buffers replaced according to the mapping; buffers that it lacks
        stay.

        Programs must have been lowered.
        """
        calls = tuple(call.on(buffers) for call in self.calls if not isinstance(call, Program))
        assert len(calls) == len(self.calls), "a program is still to be lowered"
        return NodeCalls(calls, self.scratch)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that these calls launch."""
        return tuple(call.kernel for call in self.calls if isinstance(call, Launch))
