"""Convolution without a BLAS: for depthwise ones, and wherever a result lies as no BLAS writes it.

Operands may have any strides. Each thread sums what one element needs in a fixed order; sums over
all pixels, for a filter, are made in two stages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from graphc.codegen.access import indented, parameters
from graphc.codegen.calls import Buffer, Launch, NodeCalls, Scratch
from graphc.codegen.grid import grid_kernel, over_grid
from graphc.codegen.kernel import ENTRY, Kernel, named
from graphc.codegen.layout import Operand, decompose, offset, row_major, widest_index
from graphc.codegen.lines import WARP
from graphc.codegen.scalar import C_TYPES, arithmetic_dtype
from graphc.ir.types import TensorType
from graphc.ops.geometry import Geometry

BLOCKS_WANTED = 512
PIXELS_ENOUGH = 256
"""Pixels that a block sums at least."""
TEAM = 128
"""Threads of a block that sum the same taps where pixels lie in one piece."""
RANKS = 8
"""The same where channels do: a warp of channels each."""
TAPS_AT_ONCE = 32
"""Sums that a thread holds at most, unless one row of a window has more."""

AXES = "nchw"


def channels_inside(tensor: Operand) -> bool:
    """Whether neighbours in memory are channels rather than pixels."""
    _, channel, *pixel = tensor.strides
    steps = [stride for stride in pixel if stride]
    return channel > 0 and bool(steps) and channel < min(steps)


def convolved(
    geometry: Geometry, x: Operand, w: Operand, bias: Sequence[Operand], y: Operand
) -> NodeCalls:
    """y = x * w + bias."""
    operands = [x, w, *bias]
    kernel = _forward_kernel(geometry, tuple(map(_anonymous, operands)), _anonymous(y))
    return NodeCalls((_launch(kernel, [*operands, y], math.prod(geometry.y)),))


def convolved_back(geometry: Geometry, dy: Operand, w: Operand, dx: Operand) -> NodeCalls:
    """dx from dy and w."""
    kernel = _backward_kernel(geometry, *map(_anonymous, (dy, w, dx)))
    return NodeCalls((_launch(kernel, [dy, w, dx], math.prod(geometry.x)),))


def _launch(kernel: Kernel, operands: Sequence[Operand], items: int) -> Launch:
    return over_grid(kernel, _buffers(*operands), items)


def _anonymous(tensor: Operand) -> Operand:
    """What a kernel's text depends on: no element is read by packs."""
    return Operand(tensor.name, tensor.dtype, tensor.strides, Scratch(0))


def _split(shape: tuple[int, ...], tensor: Operand, item: str) -> list[str]:
    """Statements that number the elements of a tensor as they lie."""
    order = (0, 2, 3, 1) if channels_inside(tensor) else (0, 1, 2, 3)
    split, indices = decompose(item, [shape[axis] for axis in order], "i")
    return [*split, *(f"const Index {AXES[a]} = {i};" for a, i in zip(order, indices, strict=True))]


def _at(tensor: Operand, *indices: str) -> str:
    return f"{tensor.name}[{offset(indices, tensor.strides)}]"


@functools.lru_cache(maxsize=1024)
def _forward_kernel(geometry: Geometry, inputs: tuple[Operand, ...], y: Operand) -> Kernel:
    (x, w, *bias), a = inputs, geometry.attributes
    filters, channels, *taps = geometry.w
    held = C_TYPES[arithmetic_dtype(x.dtype)]
    seen = _at(
        x, "n", f"(c / {filters // a.groups}u * {channels}u + k)", "Index(row)", "Index(column)"
    )
    weight = _at(w, "c", "k", "Index(r)", "Index(s)")
    across = [
        f"const int column = int(w) * {a.stride[1]} + s * {a.dilation[1]} - {a.padding[1]};",
        f"if (column < 0 || column >= {geometry.x[3]}) continue;",
        f"total += widen({seen}) * widen({weight});",
    ]
    down = [
        f"const int row = int(h) * {a.stride[0]} + r * {a.dilation[0]} - {a.padding[0]};",
        f"if (row < 0 || row >= {geometry.x[2]}) continue;",
        *_loop("int s", taps[1], across),
    ]
    body = [
        *_split(geometry.y, y, "item"),
        f"{held} total = 0;",
        *_loop("Index k", channels, _loop("int r", taps[0], down)),
        *(f"total += widen({_at(b, 'c')});" for b in bias),
        f"narrow(total, {_at(y, *AXES)});",
    ]
    return _per_item("conv2d", geometry, [x, w, *bias], y, geometry.y, body)


@functools.lru_cache(maxsize=1024)
def _backward_kernel(geometry: Geometry, dy: Operand, w: Operand, dx: Operand) -> Kernel:
    a, (filters, channels, *taps) = geometry.attributes, geometry.w
    each = filters // a.groups
    held = C_TYPES[arithmetic_dtype(dy.dtype)]
    first = f"c / {channels}u * {each}u"
    seen = _at(dy, "n", f"({first} + k)", "Index(row)", "Index(column)")
    weight = _at(w, f"({first} + k)", f"c % {channels}u", "Index(r)", "Index(s)")
    across = [
        f"const int right = int(w) + {a.padding[1]} - s * {a.dilation[1]};",
        f"const int column = right / {a.stride[1]};",
        f"if (right < 0 || right % {a.stride[1]} || column >= {geometry.y[3]}) continue;",
        f"total += widen({seen}) * widen({weight});",
    ]
    down = [
        f"const int below = int(h) + {a.padding[0]} - r * {a.dilation[0]};",
        f"const int row = below / {a.stride[0]};",
        f"if (below < 0 || below % {a.stride[0]} || row >= {geometry.y[2]}) continue;",
        *_loop("int s", taps[1], across),
    ]
    body = [
        *_split(geometry.x, dx, "item"),
        f"{held} total = 0;",
        *_loop("Index k", each, _loop("int r", taps[0], down)),
        f"narrow(total, {_at(dx, *AXES)});",
    ]
    return _per_item("conv2d_input_gradient", geometry, [dy, w], dx, geometry.x, body)


def _loop(variable: str, stop: int, body: Sequence[str]) -> list[str]:
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
    index = _index(geometry, [*inputs, output])
    given = parameters(inputs, [output])
    return grid_kernel(op, math.prod(shape), index, given, body)


def parts_of(geometry: Geometry) -> int:
    """Parts that the pixels of a filter's sum are cut into."""
    filters, channels, r, s = geometry.w
    blocks = -(-filters // WARP) * channels * (r // _window_rows(r, s))
    pixels = geometry.y[0] * geometry.y[2] * geometry.y[3]
    return max(1, min(pixels // PIXELS_ENOUGH, -(-BLOCKS_WANTED // blocks)))


def correlated(
    geometry: Geometry,
    dy: Operand,
    x: Operand,
    sums: Sequence[Operand],
    dw: Operand,
    parts: int,
) -> NodeCalls:
    """dw from dy and x, plus the running sum. Without parts no scratch is needed."""
    held = arithmetic_dtype(x.dtype)
    room = Operand("partial", held, (), Scratch(0))
    addends = tuple(map(_anonymous, sums))
    target, added = (room, ()) if parts > 1 else (_anonymous(dw), addends)
    kernel, grid, block = _correlation(
        geometry, _anonymous(dy), _anonymous(x), added, target, parts
    )
    if parts == 1:
        return NodeCalls((Launch(kernel, _buffers(dy, x, *sums, dw), grid, block),))
    elements = math.prod(geometry.w)
    finish = _finish_kernel(geometry, room, addends, _anonymous(dw), parts)
    launches = (
        Launch(kernel, _buffers(dy, x, room), grid, block),
        over_grid(finish, _buffers(room, *sums, dw), elements),
    )
    return NodeCalls(launches, (TensorType((elements * parts,), held),))


def _window_rows(r: int, s: int) -> int:
    """Rows of a window whose taps a thread sums at once."""
    return r if r * s <= TAPS_AT_ONCE else 1


@functools.lru_cache(maxsize=1024)
def _correlation(
    geometry: Geometry,
    dy: Operand,
    x: Operand,
    sums: tuple[Operand, ...],
    target: Operand,
    parts: int,
) -> tuple[Kernel, int, int]:
    """A block sums one part of the pixels for the taps of some window rows of a filter, or of a
    warp of filters where they are neighbours; also its grid and its threads."""
    a, (filters, channels, r, s) = geometry.attributes, geometry.w
    images, _, rows, columns = geometry.y
    at_once, held = _window_rows(r, s), C_TYPES[arithmetic_dtype(x.dtype)]
    warps = channels_inside(dy)
    each = -(-images * rows * columns // parts)
    block = WARP * RANKS if warps else TEAM
    blocks = (-(-filters // WARP) if warps else filters, channels, r // at_once, parts)
    split, (k, c, above, part) = decompose("block", blocks, "i")
    seen = _at(
        x, "n", f"(k / {filters // a.groups}u * {channels}u + c)", "Index(row)", "Index(column)"
    )
    unroll = "#pragma unroll\n"
    across = [
        f"const int column = int(q) * {a.stride[1]} + s * {a.dilation[1]} - {a.padding[1]};",
        f"if (column >= 0 && column < {geometry.x[3]})",
        f"    total[i * {s} + s] += slope * widen({seen});",
    ]
    down = [
        f"const int row = int(p) * {a.stride[0]} + int(r + i) * {a.dilation[0]} - {a.padding[0]};",
        f"if (row < 0 || row >= {geometry.x[2]}) continue;",
        unroll + _loop("int s", s, across)[0],
    ]
    pixel = [
        f"const Index n = pixel / {rows * columns}u, inside = pixel % {rows * columns}u;",
        f"const Index p = inside / {columns}u, q = inside % {columns}u;",
        f"const {held} slope = widen({_at(dy, 'n', 'k', 'p', 'q')});",
        unroll + _loop("int i", at_once, down)[0],
    ]
    thread = "threadIdx.x / WARP" if warps else "threadIdx.x"
    step, exists = (RANKS, f"k < {filters}u") if warps else (TEAM, "true")
    reduce = f"across_column<Sum, {RANKS}>" if warps else f"across_row<Sum, {TEAM}>"
    weight = ("k", "c", "Index(r + i)", "Index(s)")
    if target.name == "partial":
        place = offset(weight, row_major(geometry.w))
        store = f"partial[({place}) * {parts}u + part] = value;"
    else:
        added = "".join(f"widen({_at(each_sum, *weight)}) + " for each_sum in sums)
        store = f"narrow({added}value, {_at(target, *weight)});"
    finish = [
        f"const {held} value = {reduce}(total[i * {s} + s]);",
        f"if ({thread} == 0 && {exists}) {store}",
    ]
    body = [
        "const Index block = blockIdx.x;",
        *split,
        f"const Index k = {k}{' * WARP + threadIdx.x % WARP' if warps else ''};",
        f"const Index c = {c}, r = {above} * {at_once}u, part = {part};",
        f"const Index first = part * {each}u;",
        f"const Index past = first + {each}u < {images * rows * columns}u"
        f" ? first + {each}u : {images * rows * columns}u;",
        f"{held} total[{at_once * s}] = {{}};",
        f"if ({exists})",
        f"for (Index pixel = first + {thread}; pixel < past; pixel += {step}u) {{",
        indented(pixel, 1),
        "}",
        unroll + _loop("int i", at_once, [unroll + _loop("int s", s, finish)[0]])[0],
    ]
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters([dy, x, *sums], [target])}) {{\n'
        f"    using Index = {_index(geometry, [dy, x, *sums, target])};\n{indented(body, 1)}\n}}\n"
    )
    return named("conv2d_weight_gradient", text), math.prod(blocks), block


@functools.lru_cache(maxsize=1024)
def _finish_kernel(
    geometry: Geometry, room: Operand, sums: tuple[Operand, ...], dw: Operand, parts: int
) -> Kernel:
    """The sum of a weight's parts, in their order."""
    split, indices = decompose("item", geometry.w, "i")
    body = [
        *split,
        f"{C_TYPES[room.dtype]} total = 0;",
        f"for (Index part = 0; part < {parts}u; ++part) total += partial[item * {parts}u + part];",
        *(f"total += widen({_at(each, *indices)});" for each in sums),
        f"narrow(total, {_at(dw, *indices)});",
    ]
    elements = math.prod(geometry.w)
    index = widest_index([(geometry.w, dw), ((elements * parts,), room.on((1,)))])
    return grid_kernel(
        "conv2d_weight_finish", elements, index, parameters([room, *sums], [dw]), body
    )


def _buffers(*tensors: Operand) -> tuple[Buffer, ...]:
    return tuple(tensor.buffer for tensor in tensors if tensor.buffer is not None)


def _index(geometry: Geometry, tensors: Sequence[Operand]) -> str:
    shapes = {"x": geometry.x, "dx": geometry.x, "y": geometry.y, "dy": geometry.y}
    spans = [(shapes.get(t.name, geometry.w), t) for t in tensors if len(t.strides) == len(AXES)]
    return widest_index(spans)
