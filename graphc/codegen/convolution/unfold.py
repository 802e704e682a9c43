"""Unfolding the input of a convolution into a matrix (im2col), and folding it back (col2im).

One axis of the matrix runs over pixels: positions of the window in one image. The other axis runs
over taps: the elements that one filter reads there. In folding, one thread per element of the input
reads its taps in a fixed order. There are no atomics, and the tiling changes no bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.convolution.window import input_place, window_over
from graphc.codegen.node_calls import Launch, Scratch
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.kernel import Kernel
from graphc.codegen.text.operands import (
    VECTOR_BYTES,
    Operand,
    decompose,
    offset,
    packs,
    row_major,
    widest_index,
)
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype
from graphc.ops.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Columns:
    """The unfolded input of some images and output rows, and the order of its axes in memory."""

    geometry: Geometry
    images: int
    rows: int
    by_pixels: bool
    """True if the taps of a pixel are contiguous, otherwise the pixels of a tap are."""
    channels_last: bool
    """True if taps are ordered (rows, columns, channels), otherwise (channels, rows, columns)."""
    together: bool = False
    """True if, for each tap, the pixels of all images are consecutive."""

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the axes image, output row and column, group, channel and tap, outermost
        first."""
        _, channels, r, s = self.geometry.w
        taps = {"r": r, "s": s, "c": channels} if self.channels_last else {}
        taps = taps or {"c": channels, "r": r, "s": s}
        images, pixels = {"n": self.images}, {"p": self.rows, "q": self.geometry.y[3]}
        groups = {"g": self.geometry.attributes.groups}
        if self.by_pixels:
            return {**images, **pixels, **groups, **taps}
        if self.together:
            return {**groups, **taps, **images, **pixels}
        return {**images, **groups, **taps, **pixels}

    @property
    def strides(self) -> dict[str, int]:
        """The stride of each axis, in elements."""
        return dict(zip(self.extents, row_major(tuple(self.extents.values())), strict=True))

    @property
    def elements(self) -> int:
        """The number of elements of the whole matrix."""
        return math.prod(self.extents.values())

    def operand(self, x: Operand, buffer: Scratch) -> Operand:
        """Return the matrix in `buffer` as an operand of a kernel, with the dtype of x."""
        return Operand("columns", x.dtype, tuple(self.strides.values()), buffer)


def unfold(columns: Columns, x: Operand, workspace: Scratch, image: int, row: int) -> Launch:
    """Return a launch that unfolds images from `image` on and output rows from `row` on.

    x may have any strides over (batch, channels, height, width).
    """
    assert x.buffer is not None
    kernel = _unfold_kernel(columns, _anonymous(x))
    return over_grid(
        kernel, (x.buffer, workspace, image, row), columns.elements // _width(columns, x)
    )


def fold(
    columns: Columns, dx: Operand, workspace: Scratch, image: int, height: range, row: int
) -> Launch:
    """Return a launch that folds a matrix of taps back into images and rows of dx: each element
    sums the taps that read it. The matrix starts at row `row` of the output.
    """
    assert dx.buffer is not None
    kernel, items = _fold_kernel(columns, _anonymous(dx), len(height))
    return over_grid(kernel, (workspace, dx.buffer, image, height.start, row), items)


def _anonymous(x: Operand) -> Operand:
    """Return a copy of an operand that has only the fields on which a kernel's text depends."""
    return Operand("x", x.dtype, x.strides, Scratch(0), x.address % VECTOR_BYTES)


def _width(columns: Columns, x: Operand) -> int:
    """Return the number of elements that a thread processes at a time along the matrix's last
    axis."""
    width, extent = VECTOR_BYTES // x.dtype.itemsize, list(columns.extents.values())[-1]
    while extent % width:
        width //= 2
    return width


def _channels_packed(columns: Columns, x: Operand, width: int) -> bool:
    """Return true if the channels of a pack are contiguous in both the matrix and x."""
    last = x.on((x.strides[0], x.strides[2], x.strides[3], x.strides[1]))
    return columns.by_pixels and columns.channels_last and packs(last, width)


def _named(names: Sequence[str], indices: Sequence[str]) -> list[str]:
    return [f"const Index {name} = {i};" for name, i in zip(names, indices, strict=True)]


@functools.lru_cache(maxsize=1024)
def _unfold_kernel(columns: Columns, x: Operand) -> Kernel:
    names, extents = list(columns.extents), tuple(columns.extents.values())
    width = _width(columns, x)
    split, indices = decompose("place", extents, "i")
    packed = width > 1 and _channels_packed(columns, x, width)
    first = names if packed else [*names[:-1], f"{names[-1]}_first"]
    body = [
        f"const Index place = item * {width}u;",
        *split,
        *_named(first, indices),
        f"Pack<{C_TYPES[x.dtype]}, {width}> pack = {{}};",
        *_read_pack(columns, x, width, packed),
        f"store<{width}>(columns + place, pack);",
    ]
    matrix = columns.operand(x, Scratch(0))
    index = widest_index([(columns.geometry.x, x), (extents, matrix)])
    given = f"{parameters([x], [matrix])}, unsigned first_image, unsigned first_row"
    return grid_kernel("unfold", columns.elements // width, index, given, body)


def _read_pack(columns: Columns, x: Operand, width: int, packed: bool) -> list[str]:
    """Return statements that read a pack of the matrix's last axis from x, with zeros for padding.

    If `packed`, the pack is read by one access, else by one access per lane.
    """
    geometry, a = columns.geometry, columns.geometry.attributes
    where = [
        input_place(a, 0, "first_row + p", "int(r)"),
        input_place(a, 1, "q", "int(s)"),
        f"const bool inside = row >= 0 && row < {geometry.x[2]} && column >= 0"
        f" && column < {geometry.x[3]};",
    ]
    channel = f"(g * {geometry.w[1]}u + c)"
    at = offset(("(first_image + n)", channel, "Index(row)", "Index(column)"), x.strides)
    if packed:
        return [*where, f"if (inside) pack = load<{width}>(x + ({at}));"]
    last = list(columns.extents)[-1]
    lanes = [
        f"const Index {last} = {last}_first + lane;",
        *where,
        f"if (inside) pack.lane[lane] = x[{at}];",
    ]
    return [f"{_lanes(width)} {{\n{indented(lanes, 1)}\n}}"]


def _lanes(width: int) -> str:
    return f"#pragma unroll\nfor (int lane = 0; lane < {width}; ++lane)"


@functools.lru_cache(maxsize=1024)
def _fold_kernel(columns: Columns, dx: Operand, height: int) -> tuple[Kernel, int]:
    """Return a kernel that folds `height` rows of dx, and the number of its work items."""
    channels, width = columns.geometry.w[1], _fold_width(columns, dx)
    axes = _fold_axes(columns, height, width)
    split, indices = decompose("item", tuple(axes.values()), "i")
    if width > 1:
        indices[list(axes).index("c")] += f" * {width}u"
    place = ("(first_image + n)", f"(g * {channels}u + c)", "(first_row + h)", "w")
    body = [
        *split,
        *_named(list(axes), indices),
        f"{C_TYPES[arithmetic_dtype(dx.dtype)]} total[{width}] = {{}};",
        _sum_of_taps(columns, width),
        f"Pack<{C_TYPES[dx.dtype]}, {width}> pack;",
        f"{_lanes(width)} narrow(total[lane], pack.lane[lane]);",
        f"store<{width}>(x + ({offset(place, dx.strides)}), pack);",
    ]
    matrix, extents = columns.operand(dx, Scratch(0)), tuple(columns.extents.values())
    index = widest_index([(columns.geometry.x, dx), (extents, matrix)])
    numbers = "unsigned first_image, unsigned first_row, unsigned first_out"
    given = f"{parameters([matrix], [dx])}, {numbers}"
    items = math.prod(axes.values())
    return grid_kernel("fold", items, index, given, body), items


def _fold_width(columns: Columns, dx: Operand) -> int:
    """Return the number of channels of dx that a thread sums: a pack if they are contiguous, else
    one."""
    width = VECTOR_BYTES // dx.dtype.itemsize
    while width > 1 and (columns.geometry.w[1] % width or not _channels_packed(columns, dx, width)):
        width //= 2
    return width


def _fold_axes(columns: Columns, height: int, width: int) -> dict[str, int]:
    """Return the axes over which threads are numbered, with extents, outermost first. The innermost
    axes of the matrix are innermost here too, so that neighboring threads read neighboring
    elements.
    """
    geometry = columns.geometry
    pixels = {"h": height, "w": geometry.x[3]}
    channels = {"g": geometry.attributes.groups, "c": geometry.w[1] // width}
    inner = pixels | channels if columns.by_pixels else channels | pixels
    return {"n": columns.images, **inner}


def _sum_of_taps(columns: Columns, width: int) -> str:
    """Return a loop that sums, over all taps that read an element of dx, their entries in the
    matrix."""
    geometry, strides = columns.geometry, columns.strides
    source = offset(
        ("n", "Index(row - int(first_out))", "Index(column)", "g", "c", "Index(r)", "Index(s)"),
        [strides[name] for name in "npqgcrs"],
    )
    across = [
        *window_over(geometry, 1, "w", "s"),
        f"const auto tap = load<{width}>(columns + ({source}));",
        f"{_lanes(width)} total[lane] += widen(tap.lane[lane]);",
    ]
    taps = geometry.w[2:]
    down = [
        *window_over(geometry, 0, "first_row + h", "r"),
        f"for (int s = 0; s < {taps[1]}; ++s) {{\n{indented(across, 1)}\n}}",
    ]
    return f"for (int r = 0; r < {taps[0]}; ++r) {{\n{indented(down, 1)}\n}}"
