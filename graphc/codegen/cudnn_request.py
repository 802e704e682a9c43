"""What NVIDIA's cuDNN is asked for: convolutions and attention as plain numbers.

A request holds shapes, strides and dtypes, no pointer, so equal nodes that lie alike have equal
requests. Whether cuDNN takes a request is known only where it is installed; what it does not take
is left to generated kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from graphc.codegen.elementwise.kernel import elementwise
from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import Launch
from graphc.codegen.text.operands import VECTOR_BYTES, Place, Places, on_frame, operand
from graphc.ir.expression import parse
from graphc.ir.graph import Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import DType, float32
from graphc.ops.conv import Convolution
from graphc.ops.geometry import Pair


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a library sees it; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        shape, strides = (",".join(map(str, numbers)) for numbers in (self.shape, self.strides))
        return f"{self.dtype}[{shape}:{strides}]"


@dataclass(frozen=True, slots=True)
class ConvolutionRequest:
    """One of the three products of y = x * w, without a bias and without a running sum.

    The tensors are x (n, c, h, w), w (k, c / groups, r, s) and y (n, k, p, q) in any order in
    memory: channels last is a matter of strides. `fprop` writes y, `dgrad` x and `wgrad` w.
    """

    kind: Literal["fprop", "dgrad", "wgrad"]
    x: Tensor
    w: Tensor
    y: Tensor
    stride: Pair
    padding: tuple[int, ...]
    """(rows, columns) on both sides, or (top, left, bottom, right)."""
    dilation: Pair
    groups: int
    tf32: bool = False
    """Whether float32 operands may be rounded to 10 bits of mantissa."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by role."""
        return {"x": self.x, "w": self.w, "y": self.y}

    @property
    def written(self) -> tuple[str, ...]:
        """The roles of the results."""
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
    """The gradient's dy, dq, dk and dv; none going forward."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by role."""
        read = {"q": self.q, "k": self.k, "v": self.v, "y": self.y, "stats": self.stats}
        names = ("dy", "dq", "dk", "dv") if self.gradients else ()
        return read | dict(zip(names, self.gradients, strict=True))

    @property
    def written(self) -> tuple[str, ...]:
        """The roles of the results."""
        return ("y", "stats") if self.kind == "forward" else ("dq", "dk", "dv")


Request = ConvolutionRequest | AttentionRequest


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A request, the value of each of its tensors by role, and kernels to launch after it."""

    request: Request
    values: Mapping[str, Value]
    after: tuple[Launch, ...] = ()


def library_call(node: Node, places: Places, tf32: bool = False) -> LibraryCall | None:
    """What cuDNN may be asked for in place of a node's generated kernels; None where nothing is."""
    if isinstance(node.op, Convolution):
        return _convolution(node, places, tf32)
    if node.op.name in ("attention", "attention_gradient"):
        return _attention(node, places)
    return None


# --- convolution ---

_ROLES: Mapping[str, tuple[Literal["fprop", "dgrad", "wgrad"], tuple[str, str, str]]] = {
    "conv2d": ("fprop", ("x", "w", "y")),
    "conv2d_input_gradient": ("dgrad", ("y", "w", "x")),
    "conv2d_weight_gradient": ("wgrad", ("y", "x", "w")),
}
"""The kind of each op, and the roles of its first two inputs and its output."""


def _convolution(node: Node, places: Places, tf32: bool) -> LibraryCall | None:
    if getattr(node.attributes, "accumulate", False):
        return None  # cuDNN's graphs have no beta
    kind, roles = _ROLES[node.op.name]
    values = dict(zip(roles, (*node.inputs[:2], node.output), strict=True))
    if not all(_is_readable(value, places[value]) for value in values.values()):
        return None
    tensors = {role: _tensor(value, places[value]) for role, value in values.items()}
    a = node.attributes
    request = ConvolutionRequest(
        kind, tensors["x"], tensors["w"], tensors["y"], a.stride, a.padding, a.dilation, a.groups,
        tf32 and tensors["x"].dtype == float32,
    )  # fmt: skip
    bias = node.inputs[2:] if kind == "fprop" else ()
    return LibraryCall(request, values, tuple(_shifted(node, b, places) for b in bias))


def _shifted(node: Node, bias: Value, places: Places) -> Launch:
    """A launch that adds a bias, one number a channel, to y."""
    y = node.output
    target = operand("y", y, places[y], y.shape)
    operands = (
        operand("x", y, places[y], y.shape),
        on_frame("bias", bias, places[bias], (y.shape[1], 1, 1), y.shape),
    )
    return elementwise(Each("conv2d_bias", y.shape, operands, (target,), {"y": parse("x + bias")}))


# --- attention ---

WIDTH_MULTIPLE = 8
"""cuDNN's attention takes rows of whole 16-byte packs."""


def _attention(node: Node, places: Places) -> LibraryCall | None:
    """A request for 16-bit operands with rows in one piece; None for others, for a mask, shared
    heads of keys, and rows that count from the first."""
    is_forward = node.op.name == "attention"
    *names, _ = node.op.inputs
    q, k = (node.inputs[names.index(name)] for name in "qk")
    aligned = not node.attributes.from_first or q.shape[2] == k.shape[2]
    if len(node.inputs) > len(names) or q.shape[1] != k.shape[1] or not aligned:
        return None
    roles = (*names, *node.op.outputs)
    values = dict(zip(roles, (*node.inputs, *node.outputs), strict=True))
    maps = {role: value for role, value in values.items() if role != "stats"}
    if not all(is_16_bit(v) and _has_packed_rows(v, places[v]) for v in maps.values()):
        return None
    if not all(_is_readable(value, places[value]) for value in values.values()):
        return None
    tensors = {role: _tensor(value, places[value]) for role, value in values.items()}
    stats = tensors["stats"]
    stats = Tensor((*stats.shape, 1), (*stats.strides, 1), stats.dtype)
    request = AttentionRequest(
        "forward" if is_forward else "backward",
        tensors["q"], tensors["k"], tensors["v"], tensors["y"], stats,
        node.attributes.scale,
        node.attributes.causal,
        () if is_forward else tuple(tensors[role] for role in ("dy", "dq", "dk", "dv")),
    )  # fmt: skip
    return LibraryCall(request, values)


def _has_packed_rows(value: Value, place: Place) -> bool:
    size = value.type.dtype.itemsize
    *outer, inner = place.strides
    return (
        value.shape[-1] % WIDTH_MULTIPLE == 0
        and inner == size
        and all(stride % VECTOR_BYTES == 0 for stride in outer)
    )


# --- both ---


def _is_readable(value: Value, place: Place) -> bool:
    """Whether each element has a place of its own and the first is aligned.

    cuDNN's frontend takes it that every pointer is a multiple of 16 bytes, and cannot be told
    otherwise.
    """
    spread = zip(value.shape, place.strides, strict=True)
    return place.address % VECTOR_BYTES == 0 and all(n == 1 or stride > 0 for n, stride in spread)


def _tensor(value: Value, place: Place) -> Tensor:
    size = value.type.dtype.itemsize
    return Tensor(value.shape, tuple(stride // size for stride in place.strides), value.type.dtype)
