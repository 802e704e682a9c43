"""Calls of cuDNN that may replace the generated kernels of a node. Here are those of convolutions;
`cudnn_attention.py` has those of attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from graphc.codegen.cudnn_attention import ATTENTION, attention_calls
from graphc.codegen.cudnn_request import (
    ConvolutionRequest,
    LibraryCall,
    Tensor,
    is_readable,
    tensor_of,
)
from graphc.codegen.elementwise.kernel import elementwise
from graphc.codegen.elementwise.ops import IDENTITY
from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import Buffer, Launch, Scratch
from graphc.codegen.text.operands import Operand, Place, Places, on_frame, operand
from graphc.ir.expression import parse
from graphc.ir.graph import Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import TensorType, channels_last_strides, contiguous_strides, float32
from graphc.ops.conv import Convolution


def library_calls(node: Node, places: Places, tf32: bool = False) -> Iterator[LibraryCall]:
    """Yield cuDNN calls that may replace a node's generated kernels, best form first.

    Yields nothing if cuDNN cannot express the node.
    """
    if isinstance(node.op, Convolution):
        yield from _convolutions(node, places, tf32)
    elif node.op.name in ATTENTION:
        yield from attention_calls(node, places)


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
    if not all(is_readable(value, places[value]) for value in values.values()):
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
    tensor = tensor_of(value, place)
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
