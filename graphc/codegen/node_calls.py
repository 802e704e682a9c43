"""What a step does for one node: programs or kernels that are written from them, and products for a
BLAS, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from graphc.codegen.text.kernel import Kernel
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True)
class Scratch:
    """Tensor number `index` of a node's scratch."""

    index: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Operand number `index` of any node: inputs, then outputs."""

    index: int


Buffer = Value | Scratch | Slot
"""What a pointer argument may point to."""

Argument = Buffer | int
"""An argument of a kernel: a pointer, or an unsigned number of 32 bits."""


class Program(ABC):
    """What is to be computed of buffers, by whatever kernels a device has for it."""

    @abstractmethod
    def on(self, buffers: Mapping[Buffer, Buffer]) -> Self:
        """This program on other buffers."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on `grid` blocks of `block` threads."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: int
    block: int

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Launch:
        """This call on other buffers."""
        given = tuple(a if isinstance(a, int) else buffers.get(a, a) for a in self.arguments)
        return Launch(self.kernel, given, self.grid, self.block)


@dataclass(frozen=True, slots=True)
class Matrix:
    """One operand of a product: column-major with a leading dimension, one matrix a batch entry."""

    buffer: Buffer
    dtype: DType
    offset: int
    """Elements from the start of the buffer to the first matrix."""
    leading: int
    stride: int
    """Elements from one matrix of the batch to the next; 0 uses one for all."""


Epilogue = Literal["none", "bias", "relu", "bias_relu", "gelu", "bias_gelu"]
"""What is done to a product before it is written: a bias is added, then the activation applied."""


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
    """What follows the product."""
    bias: Buffer | None = None
    """The bias of an epilogue: m numbers in one piece, of c's dtype, one a row."""
    alpha: float = 1.0
    of: int | None = None
    """Of how many products of the node these `batch` are some; None where they are all."""
    shared: tuple[bool, bool] | None = None
    """Whether all products of the node read one first matrix, and one second; None where that is so
    if it is so for the products of this call."""

    @property
    def all_batches(self) -> int:
        """How many such products the node has, however they are cut into calls."""
        return self.batch if self.of is None else self.of

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Gemm:
        """This call on other buffers."""
        first, second, c = (
            replace(matrix, buffer=buffers.get(matrix.buffer, matrix.buffer))
            for matrix in (self.first, self.second, self.c)
        )
        bias = None if self.bias is None else buffers.get(self.bias, self.bias)
        return replace(self, first=first, second=second, c=c, bias=bias)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective between ranks, which a library carries out: `kind` is the op's name."""

    kind: str
    ranks: int
    root: int
    x: Buffer
    y: Buffer

    def on(self, buffers: Mapping[Buffer, Buffer]) -> Exchange:
        """This call on other buffers."""
        return replace(self, x=buffers.get(self.x, self.x), y=buffers.get(self.y, self.y))


Call = Program | Launch | Gemm | Exchange


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one node, in order, and the scratch tensors that they share.

    Scratch depends on the node's types and attributes, and on the order in which the axes of its
    values lie in memory; so it is known before anything has a place.
    """

    calls: tuple[Call, ...]
    scratch: tuple[TensorType, ...] = ()

    def on(self, buffers: Mapping[Buffer, Buffer]) -> NodeCalls:
        """These calls on other buffers; buffers that are not named stay."""
        return NodeCalls(tuple(call.on(buffers) for call in self.calls), self.scratch)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that are launched."""
        return tuple(call.kernel for call in self.calls if isinstance(call, Launch))
