"""Requests to NVIDIA's cuDNN: convolutions and attention as plain numbers.

A request holds shapes, strides and dtypes, but no pointer. So equal nodes with equal strides have
equal requests. Whether cuDNN supports a request is known only where it is installed. If it supports
none of the forms of a request, generated kernels are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from graphc.codegen.node_calls import Buffer, Launch
from graphc.codegen.text.operands import VECTOR_BYTES, Place
from graphc.ir.graph import Value
from graphc.ir.types import DType, TensorType
from graphc.ops.geometry import Pair


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape, strides and dtype of a tensor in a request; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    def packed(self) -> Tensor:
        """Return a contiguous tensor with the same shape and the same order of axes in memory."""
        strides, step = list(self.strides), 1
        for axis in sorted(range(len(strides)), key=lambda axis: (self.strides[axis], -axis)):
            strides[axis] = step
            step *= self.shape[axis]
        return replace(self, strides=tuple(strides))

    def spread(self) -> Tensor:
        """Return the tensor as a part of a tensor that has twice as many elements along axis 1."""
        own = self.strides[1]
        return replace(self, strides=tuple(2 * s if s > own else s for s in self.strides))

    def __str__(self) -> str:
        shape, strides = (",".join(map(str, numbers)) for numbers in (self.shape, self.strides))
        return f"{self.dtype}[{shape}:{strides}]"


@dataclass(frozen=True, slots=True)
class ConvolutionRequest:
    """One of the three products of y = x * w, without a bias and without a running sum.

    The tensors are x (n, c, h, w), w (k, c / groups, r, s) and y (n, k, p, q) in any order in
    memory: channels-last is expressed by strides. `fprop` writes y, `dgrad` x and `wgrad` w.
    """

    kind: Literal["fprop", "dgrad", "wgrad"]
    x: Tensor
    w: Tensor
    y: Tensor
    stride: Pair
    padding: tuple[int, ...]
    """The padding: (rows, columns) for both sides, or (top, left, bottom, right)."""
    dilation: Pair
    groups: int
    tf32: bool = False
    """True if float32 operands may be rounded to 10 bits of mantissa."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the convolution by role: x, w and y."""
        return {"x": self.x, "w": self.w, "y": self.y}

    @property
    def written(self) -> tuple[str, ...]:
        """The role of the tensor that the product writes."""
        return ({"fprop": "y", "dgrad": "x", "wgrad": "w"}[self.kind],)


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """softmax(scale · q · kᵀ) · v with the logarithms of its sums, or the gradient of it.

    All tensors are (batch, heads, positions, width), stats (batch, heads, positions, 1). The
    gradient has `dy` and writes dq, dk and dv.
    """

    kind: Literal["forward", "backward"]
    q: Tensor
    k: Tensor
    v: Tensor
    y: Tensor
    stats: Tensor
    scale: float
    causal: bool
    gradients: tuple[Tensor, ...] = ()
    """The gradient's dy, dq, dk and dv; empty in the forward pass."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by role: q, k, v, y and stats and, in the gradient, dy, dq, dk and dv."""
        read = {"q": self.q, "k": self.k, "v": self.v, "y": self.y, "stats": self.stats}
        names = ("dy", "dq", "dk", "dv") if self.gradients else ()
        return read | dict(zip(names, self.gradients, strict=True))

    @property
    def written(self) -> tuple[str, ...]:
        """The roles of the tensors that are written."""
        return ("y", "stats") if self.kind == "forward" else ("dq", "dk", "dv")


Request = ConvolutionRequest | AttentionRequest


def packed(request: Request) -> Request:
    """Return the request with contiguous tensors, whose axes keep their order in memory."""
    if isinstance(request, ConvolutionRequest):
        x, w, y = (tensor.packed() for tensor in (request.x, request.w, request.y))
        return replace(request, x=x, w=w, y=y)
    q, k, v, y, stats, *gradients = (t.packed() for t in request.tensors.values())
    return replace(request, q=q, k=k, v=v, y=y, stats=stats, gradients=tuple(gradients))


def spread(request: Request) -> Request:
    """Return the request with larger strides, as if its maps were parts of larger tensors. In
    attention, this applies to all tensors except the statistics. Operands computed inside a
    concatenation have such strides.
    """
    if isinstance(request, ConvolutionRequest):
        return replace(request, x=request.x.spread(), y=request.y.spread())
    q, k, v, y = (t.spread() for t in (request.q, request.k, request.v, request.y))
    gradients = tuple(t.spread() for t in request.gradients)
    return replace(request, q=q, k=k, v=v, y=y, gradients=gradients)


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A library call: a request, the buffers of its tensors by role, and launches before and after
    it.

    Scratch tensors are at the start of the node's workspace.
    """

    request: Request
    values: Mapping[str, Buffer]
    before: tuple[Launch, ...] = ()
    after: tuple[Launch, ...] = ()
    scratch: tuple[TensorType, ...] = ()


def is_readable(value: Value, place: Place) -> bool:
    """Return true if cuDNN can read a tensor: elements do not share addresses, and the first one is
    aligned. cuDNN's frontend assumes that every pointer is a multiple of 16 bytes, and this cannot
    be changed.
    """
    spread = zip(value.shape, place.strides, strict=True)
    return place.address % VECTOR_BYTES == 0 and all(n == 1 or stride > 0 for n, stride in spread)


def tensor_of(value: Value, place: Place) -> Tensor:
    """Return a value at a place as a tensor of a request."""
    size = value.type.dtype.itemsize
    return Tensor(value.shape, tuple(stride // size for stride in place.strides), value.type.dtype)
