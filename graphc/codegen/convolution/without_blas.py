"""Direct convolution, without a BLAS: for depthwise convolutions, and for strides that no BLAS
supports.

Operands may have any strides. One thread per element sums in a fixed order. The gradient of
filters, which sums over all pixels, is in `weight_gradient.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from graphc.codegen.convolution.window import input_place, skip_outside, window_over
from graphc.codegen.node_calls import Buffer, Launch, NodeCalls, Scratch
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.kernel import Kernel
from graphc.codegen.text.operands import Operand, decompose, offset, widest_index
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype
from graphc.ops.geometry import Geometry

AXES = "nchw"


def channels_inside(tensor: Operand) -> bool:
    """Return true if adjacent elements in memory belong to different channels, not to different
    pixels."""
    _, channel, *pixel = tensor.strides
    steps = [stride for stride in pixel if stride]
    return channel > 0 and bool(steps) and channel < min(steps)


def convolved(
    geometry: Geometry, x: Operand, w: Operand, bias: Sequence[Operand], y: Operand
) -> NodeCalls:
    """Return a launch that computes y = x * w + bias, for any strides."""
    operands = [x, w, *bias]
    kernel = _forward_kernel(geometry, tuple(map(anonymous, operands)), anonymous(y))
    return NodeCalls((_launch(kernel, [*operands, y], math.prod(geometry.y)),))


def convolved_back(geometry: Geometry, dy: Operand, w: Operand, dx: Operand) -> NodeCalls:
    """Return a launch that computes dx from dy and w, for any strides."""
    kernel = _backward_kernel(geometry, *map(anonymous, (dy, w, dx)))
    return NodeCalls((_launch(kernel, [dy, w, dx], math.prod(geometry.x)),))


def _launch(kernel: Kernel, operands: Sequence[Operand], items: int) -> Launch:
    return over_grid(kernel, buffers(*operands), items)


def anonymous(tensor: Operand) -> Operand:
    """Return a copy of an operand that has only the fields on which a kernel's text depends.

    The address is not one of them, so the kernel must not read packs, which need alignment.
    """
    return Operand(tensor.name, tensor.dtype, tensor.strides, Scratch(0))


def _split(shape: tuple[int, ...], tensor: Operand, item: str) -> list[str]:
    """Return statements that split the number `item` of an element, in memory order, into its
    indices."""
    order = (0, 2, 3, 1) if channels_inside(tensor) else (0, 1, 2, 3)
    split, indices = decompose(item, [shape[axis] for axis in order], "i")
    return [*split, *(f"const Index {AXES[a]} = {i};" for a, i in zip(order, indices, strict=True))]


def at(tensor: Operand, *indices: str) -> str:
    """Return C++ for the element of a tensor at these indices."""
    return f"{tensor.name}[{offset(indices, tensor.strides)}]"


@functools.lru_cache(maxsize=1024)
def _forward_kernel(geometry: Geometry, inputs: tuple[Operand, ...], y: Operand) -> Kernel:
    (x, w, *bias), a = inputs, geometry.attributes
    filters, channels, *taps = geometry.w
    held = C_TYPES[arithmetic_dtype(x.dtype)]
    seen = at(
        x, "n", f"(c / {filters // a.groups}u * {channels}u + k)", "Index(row)", "Index(column)"
    )
    weight = at(w, "c", "k", "Index(r)", "Index(s)")
    across = [
        input_place(a, 1, "w", "s"),
        skip_outside(geometry, 1),
        f"total += widen({seen}) * widen({weight});",
    ]
    down = [
        input_place(a, 0, "h", "r"),
        skip_outside(geometry, 0),
        *loop("int s", taps[1], across),
    ]
    body = [
        *_split(geometry.y, y, "item"),
        f"{held} total = 0;",
        *loop("Index k", channels, loop("int r", taps[0], down)),
        *(f"total += widen({at(b, 'c')});" for b in bias),
        f"narrow(total, {at(y, *AXES)});",
    ]
    return _per_item("conv2d", geometry, [x, w, *bias], y, geometry.y, body)


@functools.lru_cache(maxsize=1024)
def _backward_kernel(geometry: Geometry, dy: Operand, w: Operand, dx: Operand) -> Kernel:
    a, (filters, channels, *taps) = geometry.attributes, geometry.w
    each = filters // a.groups
    held = C_TYPES[arithmetic_dtype(dy.dtype)]
    first = f"c / {channels}u * {each}u"
    seen = at(dy, "n", f"({first} + k)", "Index(row)", "Index(column)")
    weight = at(w, f"({first} + k)", f"c % {channels}u", "Index(r)", "Index(s)")
    across = [
        *window_over(geometry, 1, "w", "s"),
        f"total += widen({seen}) * widen({weight});",
    ]
    down = [
        *window_over(geometry, 0, "h", "r"),
        *loop("int s", taps[1], across),
    ]
    body = [
        *_split(geometry.x, dx, "item"),
        f"{held} total = 0;",
        *loop("Index k", each, loop("int r", taps[0], down)),
        f"narrow(total, {at(dx, *AXES)});",
    ]
    return _per_item("conv2d_input_gradient", geometry, [dy, w], dx, geometry.x, body)


def loop(variable: str, stop: int, body: Sequence[str]) -> list[str]:
    """Return a loop from 0 as a list of one statement; `variable` includes its type."""
    kind, name = variable.split()
    head = f"for ({kind} {name} = 0; {name} < {stop}; ++{name})"
    return [f"{head} {{\n{indented(body, 1)}\n}}"]


def _per_item(
    op: str,
    geometry: Geometry,
    inputs: Sequence[Operand],
    output: Operand,
    shape: tuple[int, ...],
    body: Sequence[str],
) -> Kernel:
    index = index_of(geometry, [*inputs, output])
    given = parameters(inputs, [output])
    return grid_kernel(op, math.prod(shape), index, given, body)


def buffers(*tensors: Operand) -> tuple[Buffer, ...]:
    """Return the buffers of these operands, as pointer arguments."""
    return tuple(tensor.buffer for tensor in tensors if tensor.buffer is not None)


def index_of(geometry: Geometry, tensors: Sequence[Operand]) -> str:
    """Return the C++ index type that can hold every offset in these tensors of a convolution."""
    shapes = {"x": geometry.x, "dx": geometry.x, "y": geometry.y, "dy": geometry.y}
    spans = [(shapes.get(t.name, geometry.w), t) for t in tensors if len(t.strides) == len(AXES)]
    return widest_index(spans)
