"""Requests to NVIDIA's cuDNN: convolutions and attention as plain numbers.

A request holds shapes, strides and dtypes, but no pointer. So equal nodes with equal strides have
equal requests. Whether cuDNN supports a request is known only where it is installed. If it supports
none of the forms of a request, generated kernels are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from graphc.codegen.elementwise.kernel import elementwise
from graphc.codegen.elementwise.ops import IDENTITY
from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import Buffer, Launch, Scratch
from graphc.codegen.text.operands import (
    VECTOR_BYTES,
    Operand,
    Place,
    Places,
    in_one_piece,
    on_frame,
    operand,
)
from graphc.ir.expression import parse
from graphc.ir.graph import Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import (
    DType,
    TensorType,
    align,
    bfloat16,
    channels_last_strides,
    contiguous_strides,
    float32,
)
from graphc.ops.conv import Convolution
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


def library_calls(node: Node, places: Places, tf32: bool = False) -> Iterator[LibraryCall]:
    """Yield cuDNN calls that may replace a node's generated kernels, best form first.

    Yields nothing if cuDNN cannot express the node.
    """
    if isinstance(node.op, Convolution):
        yield from _convolutions(node, places, tf32)
    elif node.op.name in ATTENTION:
        yield from _attention(node, places)


# --- convolution ---

_ROLES: Mapping[str, tuple[Literal["fprop", "dgrad", "wgrad"], tuple[str, str, str]]] = {
    "conv2d": ("fprop", ("x", "w", "y")),
    "conv2d_input_gradient": ("dgrad", ("y", "w", "x")),
    "conv2d_weight_gradient": ("wgrad", ("y", "x", "w")),
}
"""For each op, the kind of its request, and the roles of its first two inputs and of its output."""


def _convolutions(node: Node, places: Places, tf32: bool) -> Iterator[LibraryCall]:
    """Yield cuDNN calls for a convolution, one per form of the request.

    Engines for tensor cores need all operands channels-last, so other operands are copied first.
    For a float32 weight gradient of 16-bit operands, cuDNN 9.19 has one engine, which takes up to
    20 times as long as products on an H200.
    """
    if getattr(node.attributes, "accumulate", False):
        return  # cuDNN's graphs have no beta
    kind, roles = _ROLES[node.op.name]
    values = dict(zip(roles, (*node.inputs[:2], node.output), strict=True))
    if not all(_is_readable(value, places[value]) for value in values.values()):
        return
    if kind == "wgrad" and is_16_bit(values["x"]) and not is_16_bit(values["w"]):
        return
    asked = _Asked(node, places, kind, values, tf32)
    for is_copied in asked.copies:
        yield asked.form(is_copied)


class _Asked:
    """A convolution node, which can be expressed by several forms of requests."""

    def __init__(
        self,
        node: Node,
        places: Places,
        kind: Literal["fprop", "dgrad", "wgrad"],
        values: Mapping[str, Value],
        tf32: bool,
    ) -> None:
        self.node, self.places, self.kind, self.values, self.tf32 = node, places, kind, values, tf32
        lies_last = {role: _lies_last(value, places[value]) for role, value in values.items()}
        self.lies_last = True in lies_last.values()
        self.first = [role for role, last in lies_last.items() if last is False]
        """The roles of channels-first tensors."""
        read_first = all(values[role] in node.inputs for role in self.first)
        self.copies = (True, False) if self.lies_last and self.first and read_first else (False,)
        """The values of `is_copied` to try. Channels-first tensors are copied if other tensors are
        channels-last and all channels-first tensors are inputs."""

    def form(self, is_copied: bool) -> LibraryCall:
        """Return the library call, with channels-first tensors copied to channels-last if
        `is_copied`."""
        all_last = self.lies_last and (is_copied or not self.first)
        tensors = {r: _map(v, self.places[v], all_last) for r, v in self.values.items()}
        buffers: dict[str, Buffer] = dict(self.values)
        before = []
        scratch: list[TensorType] = []
        for role in self.first if is_copied else ():
            value, buffers[role] = self.values[role], Scratch(len(scratch))
            dtype = tensors[role].dtype
            scratch.append(TensorType(value.shape, dtype))
            tensors[role] = _in_order(scratch[-1], self.lies_last)
            strides = tuple(
                0 if n == 1 else s for n, s in zip(value.shape, tensors[role].strides, strict=True)
            )
            own = operand("y", value, self.places[value], value.shape)
            other = Operand("y", dtype, strides, buffers[role])
            before.append(_copied(own, other, value.shape))
        biases = self.node.inputs[2:] if self.kind == "fprop" else ()
        after = [_shifted(self.node, bias, self.places) for bias in biases]
        a = self.node.attributes
        request = ConvolutionRequest(
            self.kind, tensors["x"], tensors["w"], tensors["y"], a.stride, a.padding, a.dilation,
            a.groups, self.tf32 and tensors["x"].dtype == float32,
        )  # fmt: skip
        return LibraryCall(request, buffers, tuple(before), tuple(after), tuple(scratch))


def _copied(source: Operand, target: Operand, shape: tuple[int, ...]) -> Launch:
    """Return a launch that copies `source` to `target` and converts its dtype."""
    return elementwise(
        Each("copy", shape, (replace(source, name="x"),), (target,), {"y": IDENTITY})
    )


def _lies_last(value: Value, place: Place) -> bool | None:
    """Return true if channels are the innermost axis of a map, or None if channels-first and
    channels-last strides are the same."""
    _, channels, rows, columns = value.shape
    if channels == 1 or rows * columns == 1:
        return None
    return place.strides[1] == value.type.dtype.itemsize


def _map(value: Value, place: Place, lies_last: bool) -> Tensor:
    """Return feature maps or filters as a tensor of a request.

    Strides of axes with one element follow the layout, because a library derives the layout from
    all strides.
    """
    tensor = _tensor(value, place)
    strides, step = list(tensor.strides), 1
    for axis in (1, 3, 2, 0) if lies_last else (3, 2, 1, 0):
        if tensor.shape[axis] == 1:
            strides[axis] = step
        step = max(step, strides[axis] * tensor.shape[axis])
    return replace(tensor, strides=tuple(strides))


def _in_order(type: TensorType, lies_last: bool) -> Tensor:
    """Return contiguous maps or filters, channels-last if `lies_last`, else channels-first."""
    strides = channels_last_strides(type) if lies_last else contiguous_strides(type)
    return Tensor(type.shape, tuple(s // type.dtype.itemsize for s in strides), type.dtype)


def _shifted(node: Node, bias: Value, places: Places) -> Launch:
    """Return a launch that adds a bias, one number per channel, to y."""
    y = node.output
    target = operand("y", y, places[y], y.shape)
    operands = (
        operand("x", y, places[y], y.shape),
        on_frame("bias", bias, places[bias], (y.shape[1], 1, 1), y.shape),
    )
    return elementwise(Each("conv2d_bias", y.shape, operands, (target,), {"y": parse("x + bias")}))


# --- attention ---

WIDTH_MULTIPLE = 8
"""Rows of cuDNN's attention have a multiple of this many elements, that is, whole 16-byte packs."""

ATTENTION = ("attention", "attention_gradient")

LEAST_WORKSPACE = 64 * 2**10
"""Minimum bytes of workspace, for the internal buffers of attention engines."""

ROWS_OF_A_TILE, COLUMNS_OF_A_TILE = 64, 128
"""Multiples to which cuDNN rounds up the numbers of rows and columns in workspaces of attention."""


def _attention(node: Node, places: Places) -> Iterator[LibraryCall]:
    """Yield a request for 16-bit operands with contiguous rows.

    Yields nothing for other operands or with a mask. Also yields nothing if the causal mask is
    aligned to the first row and the numbers of rows and keys differ.
    """
    is_forward = node.op.name == "attention"
    *names, _ = node.op.inputs
    q, k = (node.inputs[names.index(name)] for name in "qk")
    aligned = not node.attributes.from_first or q.shape[2] == k.shape[2]
    if len(node.inputs) > len(names) or not aligned:
        return
    roles = (*names, *node.op.outputs)
    values = dict(zip(roles, (*node.inputs, *node.outputs), strict=True))
    maps = {role: value for role, value in values.items() if role != "stats"}
    if not all(is_16_bit(v) and _has_packed_rows(v, places[v]) for v in maps.values()):
        return
    if not all(_is_readable(value, places[value]) for value in values.values()):
        return
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
    yield LibraryCall(request, values)


LINEAR_SINCE = 92_500
"""The first version of cuDNN whose deterministic gradient of attention needs a workspace linear in
the number of rows. Earlier versions keep 16-bit scores of all pairs of positions.
"""

MOST_PAIR_BYTES = 512 * 2**20
"""The largest workspace that a plan reserves for the scores of all pairs."""


def attention_workspace_bytes(node: Node, cudnn_version: int = 0) -> int:
    """Return the workspace bytes that a node's attention needs in cuDNN; 0 for other nodes.

    It holds two float32 numbers per row. The gradient also needs a float32 sum for every element of
    dq (cudnn-frontend 1.32, `scaled_dot_product_flash_attention.h`). If heads of queries share
    keys, the gradients of keys and values are reserved for every head, too. With a `cudnn_version`
    before `LINEAR_SINCE` it needs the scores of all pairs. The larger of both sizes is reserved,
    but at most `MOST_PAIR_BYTES` for the scores. Version 0 is an unknown version.
    """
    if node.op.name not in ATTENTION:
        return 0
    places = {value: in_one_piece(value.type) for value in (*node.inputs, *node.outputs)}
    scratch_bytes = 0
    for call in _attention(node, places):
        batch, heads, rows, width = call.request.tensors["q"].shape
        maps, tiles = batch * heads, align(rows, ROWS_OF_A_TILE)
        sums = 2 * maps * tiles * float32.itemsize
        if node.op.name != "attention":
            linear = maps * tiles * width * float32.itemsize
            k, v = (call.request.tensors[role].shape for role in "kv")
            columns = align(k[2], COLUMNS_OF_A_TILE)
            pairs = maps * tiles * columns * bfloat16.itemsize
            keeps_pairs = 0 < cudnn_version < LINEAR_SINCE and pairs <= MOST_PAIR_BYTES
            sums += max(linear, pairs) if keeps_pairs else linear
            if heads != k[1]:
                sums += maps * columns * (k[3] + v[3]) * float32.itemsize
        scratch_bytes = LEAST_WORKSPACE + sums
    return scratch_bytes


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
    """Return true if cuDNN can read a tensor: elements do not share addresses, and the first one is
    aligned. cuDNN's frontend assumes that every pointer is a multiple of 16 bytes, and this cannot
    be changed.
    """
    spread = zip(value.shape, place.strides, strict=True)
    return place.address % VECTOR_BYTES == 0 and all(n == 1 or stride > 0 for n, stride in spread)


def _tensor(value: Value, place: Place) -> Tensor:
    size = value.type.dtype.itemsize
    return Tensor(value.shape, tuple(stride // size for stride in place.strides), value.type.dtype)
