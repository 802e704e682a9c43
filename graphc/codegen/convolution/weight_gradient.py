"""The gradient of filters without a BLAS: sums over all pixels, in two stages if blocks are few.

Problem: a weight is the sum of dy · x over all pixels of all images. There may be fewer weights
than a device has threads.

A block takes one channel of one filter, or of a warp of filters if these are neighbors in memory,
and some rows of the window. Its threads process pixels in parallel. Each thread keeps a sum for
every tap of these rows, so an element of dy is read once for all of them. Then the threads' sums
are combined. If blocks are few, pixels are split into parts. The sums of each part go to scratch,
and a second kernel adds the parts of each weight in order.

The assignment of pixels to threads depends on the geometry and on whether channels or pixels are
neighbors in dy. It depends on no other property of strides or addresses. There are no atomics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.convolution.window import input_place, skip_outside
from graphc.codegen.convolution.without_blas import (
    anonymous,
    at,
    buffers,
    channels_inside,
    index_of,
    loop,
)
from graphc.codegen.node_calls import Launch, NodeCalls, Scratch
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import WARP, grid_kernel, over_grid
from graphc.codegen.text.kernel import ENTRY, Kernel, named
from graphc.codegen.text.operands import Operand, decompose, offset, row_major, widest_index
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype
from graphc.ir.types import TensorType
from graphc.ops.geometry import Geometry

BLOCKS_WANTED = 512
"""Number of blocks that keep a device busy."""
PIXELS_ENOUGH = 256
"""Minimum number of pixels per block."""
TEAM = 128
"""Number of threads per block that sum the same taps if pixels are contiguous."""
RANKS = 8
"""Number of threads per block that sum the same taps if channels are contiguous; each is in another
warp, whose threads take neighboring filters."""
TAPS_AT_ONCE = 32
"""Maximum number of sums per thread, unless one row of a window has more taps."""

UNROLL = "#pragma unroll\n"


def parts_of(geometry: Geometry) -> int:
    """Return the number of parts into which the pixels of each sum are split."""
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
    """Return launches that compute the gradient dw from dy and x, and add `sums` to it.

    The sum over pixels is split into `parts` partial sums in scratch; 1 part uses no scratch.
    """
    held = arithmetic_dtype(x.dtype)
    workspace = Operand("partial", held, (), Scratch(0))
    addends = tuple(map(anonymous, sums))
    target, added = (workspace, ()) if parts > 1 else (anonymous(dw), addends)
    kernel, grid, block = _correlation(geometry, anonymous(dy), anonymous(x), added, target, parts)
    if parts == 1:
        return NodeCalls((Launch(kernel, buffers(dy, x, *sums, dw), grid, block),))
    launches = (
        Launch(kernel, buffers(dy, x, workspace), grid, block),
        finished(geometry, workspace, sums, dw, parts),
    )
    return NodeCalls(launches, (TensorType((math.prod(geometry.w) * parts,), held),))


def finished(
    geometry: Geometry, partial: Operand, sums: Sequence[Operand], dw: Operand, parts: int
) -> Launch:
    """Return a launch that adds the parts of each weight in order, then the tensors in `sums`.

    `partial` is contiguous, of shape (parts, filters, channels, rows, columns).
    """
    addends = tuple(map(anonymous, sums))
    kernel = _finish_kernel(geometry, anonymous(partial), addends, anonymous(dw), parts)
    return over_grid(kernel, buffers(partial, *sums, dw), math.prod(geometry.w))


def _window_rows(r: int, s: int) -> int:
    """Return the number of rows of a window whose taps one thread sums."""
    return r if r * s <= TAPS_AT_ONCE else 1


@dataclass(frozen=True, slots=True)
class _Cut:
    """The division of the sums of a weight gradient among blocks and threads."""

    warps: bool
    """True if the threads of a warp compute sums of neighboring filters, false if they share the
    sums of one filter."""
    at_once: int
    """Number of rows of the window whose taps a thread sums."""
    pixels: int
    """Number of pixels per part."""
    blocks: tuple[int, int, int, int]
    """Numbers of blocks along four axes: filter or warp of filters, channel, window row, and
    part."""

    @property
    def threads(self) -> int:
        """The number of threads per block."""
        return WARP * RANKS if self.warps else TEAM

    @property
    def rank(self) -> str:
        """C++ for the rank of a thread among those that sum the same taps."""
        return "threadIdx.x / WARP" if self.warps else "threadIdx.x"

    @property
    def step(self) -> int:
        """The number of threads that sum the same taps."""
        return RANKS if self.warps else TEAM

    @property
    def combine(self) -> str:
        """The device function that adds up the sums of the threads that sum the same taps."""
        return f"across_column<Sum, {RANKS}>" if self.warps else f"across_row<Sum, {TEAM}>"


def _cut(geometry: Geometry, dy: Operand, parts: int) -> _Cut:
    filters, channels, r, s = geometry.w
    images, _, rows, columns = geometry.y
    warps, at_once = channels_inside(dy), _window_rows(r, s)
    own = -(-filters // WARP) if warps else filters
    blocks = (own, channels, r // at_once, parts)
    return _Cut(warps, at_once, -(-images * rows * columns // parts), blocks)


@functools.lru_cache(maxsize=1024)
def _correlation(
    geometry: Geometry,
    dy: Operand,
    x: Operand,
    sums: tuple[Operand, ...],
    target: Operand,
    parts: int,
) -> tuple[Kernel, int, int]:
    """Return (kernel, blocks, threads per block) of sums over parts of the pixels. A block sums one
    part, for the taps of some window rows of a filter, or of a warp of filters if these are
    neighbors in memory.
    """
    cut, (filters, _, _, s) = _cut(geometry, dy, parts), geometry.w
    pixels = geometry.y[0] * geometry.y[2] * geometry.y[3]
    exists = f"k < {filters}u" if cut.warps else "true"
    held = C_TYPES[arithmetic_dtype(x.dtype)]
    finish = [
        f"const {held} value = {cut.combine}(total[i * {s} + s]);",
        f"if ({cut.rank} == 0 && {exists}) {_store(geometry, sums, target, parts)}",
    ]
    body = [
        *_block(geometry, cut),
        f"const Index first = part * {cut.pixels}u;",
        f"const Index past = first + {cut.pixels}u < {pixels}u"
        f" ? first + {cut.pixels}u : {pixels}u;",
        f"{held} total[{cut.at_once * s}] = {{}};",
        f"if ({exists})",
        f"for (Index pixel = first + {cut.rank}; pixel < past; pixel += {cut.step}u) {{",
        indented(_pixel(geometry, cut, dy, x), 1),
        "}",
        _unrolled("int i", cut.at_once, [_unrolled("int s", s, finish)]),
    ]
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters([dy, x, *sums], [target])}) {{\n'
        f"    using Index = {index_of(geometry, [dy, x, *sums, target])};\n"
        f"{indented(body, 1)}\n}}\n"
    )
    return named("conv2d_weight_gradient", text), math.prod(cut.blocks), cut.threads


def _block(geometry: Geometry, cut: _Cut) -> list[str]:
    """Return statements that compute a block's filter, channel, window row and part from its
    number."""
    split, (k, c, above, part) = decompose("block", cut.blocks, "i")
    lane = " * WARP + threadIdx.x % WARP" if cut.warps else ""
    return [
        "const Index block = blockIdx.x;",
        *split,
        f"const Index k = {k}{lane};",
        f"const Index c = {c}, r = {above} * {cut.at_once}u, part = {part};",
    ]


def _pixel(geometry: Geometry, cut: _Cut, dy: Operand, x: Operand) -> list[str]:
    """Return statements that add one pixel's terms to a thread's sums."""
    a, (filters, channels, _, s) = geometry.attributes, geometry.w
    rows, columns = geometry.y[2:]
    channel = f"(k / {filters // a.groups}u * {channels}u + c)"
    seen = at(x, "n", channel, "Index(row)", "Index(column)")
    held = C_TYPES[arithmetic_dtype(x.dtype)]
    across = [
        input_place(a, 1, "q", "s"),
        f"if (column >= 0 && column < {geometry.x[3]})",
        f"    total[i * {s} + s] += slope * widen({seen});",
    ]
    down = [
        input_place(a, 0, "p", "int(r + i)"),
        skip_outside(geometry, 0),
        _unrolled("int s", s, across),
    ]
    return [
        f"const Index n = pixel / {rows * columns}u, inside = pixel % {rows * columns}u;",
        f"const Index p = inside / {columns}u, q = inside % {columns}u;",
        f"const {held} slope = widen({at(dy, 'n', 'k', 'p', 'q')});",
        _unrolled("int i", cut.at_once, down),
    ]


def _store(geometry: Geometry, sums: Sequence[Operand], target: Operand, parts: int) -> str:
    """Return a statement that stores `value`, the sum for one weight or for one part of its
    pixels."""
    weight = ("k", "c", "Index(r + i)", "Index(s)")
    if parts > 1:
        place = offset(weight, row_major(geometry.w))
        return f"partial[part * {math.prod(geometry.w)}u + ({place})] = value;"
    added = "".join(f"widen({at(each, *weight)}) + " for each in sums)
    return f"narrow({added}value, {at(target, *weight)});"


def _unrolled(variable: str, stop: int, body: Sequence[str]) -> str:
    """Return an unrolled loop, whose arrays stay in registers; without unrolling they would be in
    memory."""
    return UNROLL + loop(variable, stop, body)[0]


@functools.lru_cache(maxsize=1024)
def _finish_kernel(
    geometry: Geometry, workspace: Operand, sums: tuple[Operand, ...], dw: Operand, parts: int
) -> Kernel:
    """Return a kernel that adds the parts of each weight in order."""
    split, indices = decompose("item", geometry.w, "i")
    body = [
        *split,
        f"{C_TYPES[workspace.dtype]} total = 0;",
        f"for (Index part = 0; part < {parts}u; ++part)",
        f"    total += partial[part * {math.prod(geometry.w)}u + item];",
        *(f"total += widen({at(each, *indices)});" for each in sums),
        f"narrow(total, {at(dw, *indices)});",
    ]
    elements = math.prod(geometry.w)
    index = widest_index([(geometry.w, dw), ((elements * parts,), workspace.on((1,)))])
    return grid_kernel(
        "conv2d_weight_finish", elements, index, parameters([workspace, *sums], [dw]), body
    )
