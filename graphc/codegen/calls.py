"""What a step does for one node: kernels to launch and products for a BLAS, in order."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.codegen.kernel import Kernel
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Scratch:
    """Tensor number `index` of a node's scratch."""

    index: int


Buffer = Value | Scratch
"""What a pointer argument points to."""

Argument = Buffer | int
"""A pointer, or an unsigned number of 32 bits."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on `grid` blocks of `block` threads."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: int
    block: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand of a product: column-major with a leading dimension, one matrix a batch entry."""

    buffer: Buffer
    dtype: DType
    offset: int
    """From the buffer's first element to the first matrix's."""
    leading: int
    stride: int
    """From one matrix of the batch to the next; 0 uses one for all."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """c = op(first) · op(second) + beta · c, column-major, with op(first) (m, k) and op(second)
    (k, n)."""

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


Call = Launch | Gemm


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node, in order, and the scratch tensors that they share.

    Scratch depends on the node's types and attributes, and on the order in which the axes of its
    values lie in memory; so it is known before anything has a place.
    """

    calls: tuple[Call, ...]
    scratch: tuple[TensorType, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that are launched."""
        return tuple(call.kernel for call in self.calls if isinstance(call, Launch))
