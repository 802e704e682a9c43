"""Convolution and its gradients: products of a BLAS with the unfolded input.

With filters F (filters, taps), output maps Y (filters, pixels) and unfolded input X (taps, pixels),
the three are Y = F · X, X = Fᵀ · Y and F = Y · Xᵀ. The input is unfolded some images at a time, or
some rows of one image. What is one piece of memory decides the form of the products: channels last,
all pixels are one matrix; else each image is one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from graphc.codegen import direct
from graphc.codegen.calls import Call, Launch, NodeCalls, Scratch
from graphc.codegen.direct import channels_inside
from graphc.codegen.elementwise import elementwise
from graphc.codegen.elementwise_ops import IDENTITY, Places
from graphc.codegen.gemm import compute_type
from graphc.codegen.layout import Operand, operand, row_major
from graphc.codegen.matrices import View, filters_of, maps_of, multiply, taps_of
from graphc.codegen.unfold import Columns, fold, unfold
from graphc.ir.graph import Node
from graphc.ir.types import DType, TensorType, float32
from graphc.ops.conv import Convolution
from graphc.ops.geometry import Conv2dAttributes, Geometry

LIMIT_BYTES = 64 * 2**20
"""Bytes of scratch for unfolding, if one row of one image needs no more."""

ROOM = Scratch(0)
"""Where input is unfolded for an output, or what is to be folded back."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Some images, and some rows of the result: of the output, or of the input."""

    images: range
    rows: range


def convolution(node: Node, places: Places, tf32: bool = False) -> NodeCalls:
    """What a convolution or one of its gradients does at these places, whatever the strides."""
    return CONVOLUTIONS[node.op.name](node, places, tf32)


def takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether products read or write the operand `name` where it lies so.

    What is unfolded or folded may lie anyhow. Otherwise kernels without a BLAS would do the work,
    slower and in another order of sums.
    """
    geometry = _geometry(node)
    is_unfolded = name in ("x", "dx") and not geometry.is_pointwise
    if _is_depthwise(geometry) or is_unfolded or name in ("bias", "sum"):
        return True
    size = type.dtype.itemsize
    own = tuple(
        0 if extent == 1 else stride // size
        for extent, stride in zip(type.shape, strides, strict=True)
    )
    tensor = Operand(name, type.dtype, own, ROOM)
    if name in ("w", "dw"):
        return filters_of(tensor, geometry.w, geometry.attributes.groups, False) is not None
    return _maps(geometry, tensor) is not None


def _geometry(node: Node) -> Geometry:
    op = node.op
    assert isinstance(op, Convolution)
    return op.geometry(node)


def _is_depthwise(geometry: Geometry) -> bool:
    """Whether each filter sees one of many channels: products would have nothing to sum."""
    return geometry.attributes.groups > 1 and geometry.w[1] == 1


def _operands(node: Node, places: Places) -> list[Operand]:
    """Inputs, then the output, on their own axes."""
    names = [node.op.input_name(i) for i in range(len(node.inputs))]
    names = ["filters" if name == "w" else name for name in (*names, node.op.output_name(0))]
    values = (*node.inputs, node.output)
    return [operand(n, v, places[v], v.shape) for n, v in zip(names, values, strict=True)]


def _maps(geometry: Geometry, tensor: Operand) -> View | None:
    """Channels by pixels, if a BLAS takes them."""
    groups = geometry.attributes.groups
    shape = geometry.y if tensor.name in ("y", "dy") else geometry.x
    view = maps_of(tensor, shape, groups)
    if view is None or not view.is_readable(shape[1] // groups, shape[2] * shape[3]):
        return None
    return view


def _row_bytes(geometry: Geometry, dtype: DType) -> int:
    """Bytes of unfolded input for one row of the output."""
    return geometry.attributes.groups * geometry.depth * geometry.y[3] * dtype.itemsize


def _even(total: int, most: int) -> list[range]:
    """As few parts as possible, of sizes as even as possible."""
    size = -(-total // -(-total // max(1, most)))
    return [range(start, min(start + size, total)) for start in range(0, total, size)]


def _tiles(images: int, rows: int, image_bytes: int, rows_fit: int, limit: int) -> list[Tile]:
    """Tiles of whole images where one is within the limit, else of so many rows of one image."""
    if image_bytes <= limit:
        parts = _even(images, limit // image_bytes)
        return [Tile(part, range(rows)) for part in parts]
    parts = _even(rows, rows_fit)
    return [Tile(range(n, n + 1), part) for n in range(images) for part in parts]


def _output_tiles(geometry: Geometry, dtype: DType, limit: int) -> list[Tile]:
    """Tiles of the output."""
    row = _row_bytes(geometry, dtype)
    images, _, rows, _ = geometry.y
    return _tiles(images, rows, row * rows, limit // row, limit)


def _input_tiles(geometry: Geometry, dtype: DType, limit: int) -> list[Tile]:
    """Tiles of the input. Neighbours unfold some rows of the output both."""
    row = _row_bytes(geometry, dtype)
    a, (images, _, height, _) = geometry.attributes, geometry.x
    unfolded = max(1, limit // row)
    reach = a.dilation[0] * (geometry.w[2] - 1)
    rows_fit = (unfolded - 1) * a.stride[0] + 1 - reach
    return _tiles(images, height, row * geometry.y[2], rows_fit, limit)


def _windows_over(geometry: Geometry, height: range) -> range:
    """The rows of the output that read these rows of the input."""
    a = geometry.attributes
    reach = a.dilation[0] * (geometry.w[2] - 1)
    first = max(0, -(-(height.start + a.padding[0] - reach) // a.stride[0]))
    past = min(geometry.y[2], (height.stop - 1 + a.padding[0]) // a.stride[0] + 1)
    return range(first, max(first, past))


def _room(geometry: Geometry, tiles: Iterable[tuple[int, int]], dtype: DType) -> TensorType:
    """Scratch for the largest unfolded tile, of (images, rows)."""
    row = geometry.attributes.groups * geometry.depth * geometry.y[3]
    return TensorType((max(images * rows for images, rows in tiles) * row,), dtype)


@functools.lru_cache(maxsize=1024)
def _forward_plan(
    geometry: Geometry, dtype: DType, limit: int
) -> tuple[list[Tile], tuple[TensorType, ...]]:
    if geometry.is_pointwise:
        return [Tile(range(geometry.y[0]), range(geometry.y[2]))], ()
    tiles = _output_tiles(geometry, dtype, limit)
    sizes = [(len(tile.images), len(tile.rows)) for tile in tiles]
    return tiles, (_room(geometry, sizes, dtype),)


def _forward(node: Node, places: Places, tf32: bool) -> NodeCalls:
    geometry, (x, w, *bias, y) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return direct.convolved(geometry, x, w, bias, y)
    tiles, scratch = _forward_plan(geometry, x.dtype, LIMIT_BYTES)
    by_pixels, groups = channels_inside(x), geometry.attributes.groups
    source, target = _maps(geometry, x), _maps(geometry, y)
    found = filters_of(w, geometry.w, groups, by_pixels)
    if found is None or target is None or (geometry.is_pointwise and source is None):
        return NodeCalls(direct.convolved(geometry, x, w, bias, y).calls, scratch)
    filters, channels_last = found
    calls: list[Call] = [_spread(b, y, geometry) for b in bias]
    for tile in tiles:
        taps = source
        if not geometry.is_pointwise:
            size = len(tile.images), len(tile.rows)
            columns = Columns(geometry, *size, by_pixels, channels_last)
            calls.append(unfold(columns, x, ROOM, tile.images.start, tile.rows.start))
            taps = taps_of(columns, columns.operand(x, ROOM))
        assert taps is not None
        maps = _part(geometry, target, tile.images.start, tile.rows.start)
        images, pixels = _joined(len(tile.images), len(tile.rows) * geometry.y[3], taps, maps)
        calls += multiply(
            (geometry.w[0] // groups, pixels, geometry.depth), filters, taps, maps,
            (images, groups), 1.0 if bias else 0.0, compute_type(x.dtype, tf32),
        )  # fmt: skip
    return NodeCalls(tuple(calls), scratch)


def _spread(bias: Operand, y: Operand, geometry: Geometry) -> Launch:
    """The bias as the output's first value."""
    return _copied(geometry.y, bias.on((0, *bias.strides, 0, 0)), y)


def _part(geometry: Geometry, maps: View, image: int, row: int) -> View:
    """Maps of the output from that image and row on."""
    return maps.moved(image * maps.image + row * geometry.y[3] * maps.right)


def _joined(images: int, pixels: int, *views: View) -> tuple[int, int]:
    """Images and pixels of the products: all pixels at once where they are one matrix."""
    if all(view.joins(pixels) for view in views):
        return 1, images * pixels
    return images, pixels


@functools.lru_cache(maxsize=1024)
def _backward_plan(
    geometry: Geometry, dtype: DType, limit: int
) -> tuple[list[Tile], tuple[TensorType, ...]]:
    if geometry.is_pointwise:
        return [Tile(range(geometry.y[0]), range(geometry.x[2]))], ()
    tiles = _input_tiles(geometry, dtype, limit)
    sizes = [(len(t.images), max(1, len(_windows_over(geometry, t.rows)))) for t in tiles]
    return tiles, (_room(geometry, sizes, dtype),)


def _input_gradient(node: Node, places: Places, tf32: bool) -> NodeCalls:
    geometry, (dy, w, dx) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return direct.convolved_back(geometry, dy, w, dx)
    tiles, scratch = _backward_plan(geometry, dy.dtype, LIMIT_BYTES)
    by_pixels, groups = channels_inside(dx), geometry.attributes.groups
    source, target = _maps(geometry, dy), _maps(geometry, dx)
    found = filters_of(w, geometry.w, groups, by_pixels)
    if found is None or source is None or (geometry.is_pointwise and target is None):
        return NodeCalls(direct.convolved_back(geometry, dy, w, dx).calls, scratch)
    filters, channels_last = found
    calls: list[Call] = []
    for tile in tiles:
        rows = _windows_over(geometry, tile.rows)
        size = len(tile.images), max(1, len(rows))
        columns = Columns(geometry, *size, by_pixels, channels_last)
        taps = target if geometry.is_pointwise else taps_of(columns, columns.operand(dx, ROOM))
        assert taps is not None
        if rows:
            maps = _part(geometry, source, tile.images.start, rows.start)
            images, pixels = _joined(len(tile.images), len(rows) * geometry.y[3], maps, taps)
            calls += multiply(
                (geometry.depth, pixels, geometry.w[0] // groups), filters.transposed, maps, taps,
                (images, groups), 0.0, compute_type(dy.dtype, tf32),
            )  # fmt: skip
        if not geometry.is_pointwise:
            calls.append(fold(columns, dx, ROOM, tile.images.start, tile.rows, rows.start))
    return NodeCalls(tuple(calls), scratch)


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """How the sum over all pixels is cut, and its scratch, by types and attributes alone."""

    tiles: tuple[Tile, ...]
    scratch: tuple[TensorType, ...]
    unfolded: Scratch | None
    gathered: Scratch | None
    """Where pixels of dy are brought together, if tiles have many images."""
    total: Scratch | None
    """A float32 sum of a 16-bit gradient with several tiles."""


@functools.lru_cache(maxsize=1024)
def _weight_plan(geometry: Geometry, narrow: DType, dw: DType, limit: int) -> WeightPlan:
    images, filters, rows, columns = geometry.y
    row = _row_bytes(geometry, narrow)
    if dw.itemsize == 2:
        limit = max(1, limit - math.prod(geometry.w) * float32.itemsize)
    both = (row + filters * columns * narrow.itemsize) * rows
    each = Tile(range(1), range(rows))
    if images > 1 and 2 * both <= limit:
        tiles = [Tile(part, each.rows) for part in _even(images, limit // both)]
    elif geometry.is_pointwise:
        tiles = [Tile(range(n, n + 1), each.rows) for n in range(images)]
    else:
        parts = _even(rows, limit // row)
        tiles = [Tile(range(n, n + 1), part) for n in range(images) for part in parts]
    scratch: list[TensorType] = []

    def room(elements: int, dtype: DType) -> Scratch:
        scratch.append(TensorType((elements,), dtype))
        return Scratch(len(scratch) - 1)

    many = len(tiles[0].images)
    pixels = many * len(tiles[0].rows) * columns
    depth = geometry.attributes.groups * geometry.depth
    unfolds = many > 1 or not geometry.is_pointwise
    sums = dw.itemsize == 2 and len(tiles) > 1
    return WeightPlan(
        tuple(tiles),
        unfolded=room(pixels * depth, narrow) if unfolds else None,
        gathered=room(pixels * filters, narrow) if many > 1 else None,
        total=room(math.prod(geometry.w), float32) if sums else None,
        scratch=tuple(scratch),
    )


def _weight_gradient(node: Node, places: Places, tf32: bool) -> NodeCalls:
    geometry, (dy, x, *sums, dw) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return direct.correlated(geometry, dy, x, sums, dw, direct.parts_of(geometry))
    plan = _weight_plan(geometry, x.dtype, dw.dtype, LIMIT_BYTES)
    groups = geometry.attributes.groups
    found = filters_of(dw, geometry.w, groups, channels_inside(x))
    maps = _maps(geometry, dy)
    taps = _maps(geometry, x) if geometry.is_pointwise else None
    unread = maps is None or (geometry.is_pointwise and taps is None)
    if found is None or (plan.gathered is None and unread):
        calls = direct.correlated(geometry, dy, x, sums, dw, 1).calls
        return NodeCalls(calls, plan.scratch)
    filters, channels_last = found
    tiles, pixels = plan.tiles, geometry.y[2] * geometry.y[3]
    if maps is not None and taps is not None and maps.joins(pixels) and taps.joins(pixels):
        tiles = (Tile(range(geometry.y[0]), range(geometry.y[2])),)
    held = dw
    if plan.total is not None and len(tiles) > 1:
        held = _total(geometry, plan.total)
        summed = filters_of(held, geometry.w, groups, channels_last)
        assert summed is not None
        filters, channels_last = summed
    moved = [s for s in sums if held is not dw or places[node.inputs[2]] != places[node.output]]
    products: list[Call] = [_copied(geometry.w, s, held) for s in moved]
    for number, tile in enumerate(tiles):
        first, first_calls = _gathered(geometry, plan, tile, dy, maps)
        second, second_calls = _taps(geometry, plan, tile, x, taps, channels_last)
        products += [*first_calls, *second_calls]
        count = len(tile.images) * len(tile.rows) * geometry.y[3]
        products += multiply(
            (geometry.w[0] // groups, geometry.depth, count), first, second.transposed, filters,
            (1, groups), 1.0 if sums or number else 0.0, compute_type(x.dtype, tf32),
        )  # fmt: skip
    if held is not dw:
        products.append(_copied(geometry.w, held, dw))
    return NodeCalls(tuple(products), plan.scratch)


def _total(geometry: Geometry, room: Scratch) -> Operand:
    """A float32 sum of tiles."""
    return Operand("total", float32, row_major(geometry.w), room)


def _copied(shape: tuple[int, ...], source: Operand, target: Operand) -> Launch:
    named = replace(source, name="x"), replace(target, name="y")
    return elementwise("copy", shape, [named[0]], [named[1]], {"y": IDENTITY})


def _gathered(
    geometry: Geometry, plan: WeightPlan, tile: Tile, dy: Operand, maps: View | None
) -> tuple[View, list[Call]]:
    """dy with all pixels of a tile as columns of one matrix, and what brings them together."""
    pixels = geometry.y[2] * geometry.y[3]
    if maps is not None and (len(tile.images) == 1 or maps.joins(pixels)):
        return _part(geometry, maps, tile.images.start, tile.rows.start), []
    assert plan.gathered is not None
    return _brought(_pointwise(geometry), tile, dy, plan.gathered, True)


def _taps(
    geometry: Geometry,
    plan: WeightPlan,
    tile: Tile,
    x: Operand,
    taps: View | None,
    channels_last: bool,
) -> tuple[View, list[Call]]:
    """The same for the unfolded input."""
    pixels = geometry.y[2] * geometry.y[3]
    if taps is not None and (len(tile.images) == 1 or taps.joins(pixels)):
        return _part(geometry, taps, tile.images.start, tile.rows.start), []
    assert plan.unfolded is not None
    return _brought(geometry, tile, x, plan.unfolded, channels_last)


def _brought(
    geometry: Geometry, tile: Tile, tensor: Operand, room: Scratch, channels_last: bool
) -> tuple[View, list[Call]]:
    size = len(tile.images), len(tile.rows)
    columns = Columns(geometry, *size, channels_inside(tensor), channels_last, together=True)
    launch = unfold(columns, tensor, room, tile.images.start, tile.rows.start)
    return taps_of(columns, columns.operand(tensor, room)), [launch]


def _pointwise(geometry: Geometry) -> Geometry:
    """A convolution that reads each element of dy once."""
    groups, filters = geometry.attributes.groups, geometry.y[1]
    window = (filters, filters // groups, 1, 1)
    attributes = Conv2dAttributes(groups=groups)
    return Geometry(attributes, geometry.y, window, geometry.y, geometry.itemsize)


CONVOLUTIONS: Mapping[str, Callable[[Node, Places, bool], NodeCalls]] = {
    "conv2d": _forward,
    "conv2d_input_gradient": _input_gradient,
    "conv2d_weight_gradient": _weight_gradient,
}
"""Ops that are products with the unfolded input."""
