"""Convolution and its gradients as BLAS products with the unfolded input (im2col).

Let F be the filters (filters, taps), Y the output maps (filters, pixels) and X the unfolded input
(taps, pixels). The three products are Y = F · X, X = Fᵀ · Y and F = Y · Xᵀ. The input is unfolded
some images at a time, or some rows of one image. The layout decides the form of the products:
channels-last, all pixels of all images form one matrix; otherwise the pixels of each image form a
matrix.
"""

from __future__ import annotations

import math
from dataclasses import replace

from graphc.codegen.convolution.matrices import View, filters_of, maps_of, multiply, taps_of
from graphc.codegen.convolution.tiles import (
    Tile,
    WeightPlan,
    backward_plan,
    forward_plan,
    weight_plan,
    windows_over,
)
from graphc.codegen.convolution.unfold import Columns, fold, unfold
from graphc.codegen.convolution.weight_gradient import correlated, finished, parts_of
from graphc.codegen.convolution.without_blas import channels_inside, convolved, convolved_back
from graphc.codegen.elementwise.ops import IDENTITY
from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import Call, NodeCalls, Scratch
from graphc.codegen.products.gemm import compute_type
from graphc.codegen.rules import ProductOptions, products_of, strides_of
from graphc.codegen.text.operands import Operand, Places, operand, row_major
from graphc.ir.graph import Node
from graphc.ir.types import TensorType, float32
from graphc.ops.conv import Convolution
from graphc.ops.geometry import Conv2dAttributes, Geometry

LIMIT_BYTES = 64 * 2**20
"""Maximum bytes of scratch for unfolding, unless one row of one image needs more."""

WORKSPACE = Scratch(0)
"""The scratch tensor that holds the unfolded input, or the gradient that is folded back."""


@strides_of(Convolution)
def _takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if the products of a convolution accept these strides of the operand `name`.

    Operands that are unfolded or folded may have any strides. For all others, unsupported strides
    select direct kernels, which are slower and sum in another order.
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
    tensor = Operand(name, type.dtype, own, WORKSPACE)
    if name in ("w", "dw"):
        return filters_of(tensor, geometry.w, geometry.attributes.groups, False) is not None
    return _maps(geometry, tensor) is not None


def _geometry(node: Node) -> Geometry:
    op = node.op
    assert isinstance(op, Convolution)
    return op.geometry(node)


def _is_depthwise(geometry: Geometry) -> bool:
    """Return true for a depthwise convolution: each filter reads one channel, so products would
    have no channels to sum over."""
    return geometry.attributes.groups > 1 and geometry.w[1] == 1


def _operands(node: Node, places: Places) -> list[Operand]:
    """Return a node's inputs, then its output, as operands with their own axes."""
    names = [node.op.input_name(i) for i in range(len(node.inputs))]
    names = ["filters" if name == "w" else name for name in (*names, node.op.output_name(0))]
    values = (*node.inputs, node.output)
    return [operand(n, v, places[v], v.shape) for n, v in zip(names, values, strict=True)]


def _maps(geometry: Geometry, tensor: Operand) -> View | None:
    """View feature maps as matrices of channels by pixels; return None if no BLAS accepts their
    strides."""
    groups = geometry.attributes.groups
    shape = geometry.y if tensor.name in ("y", "dy") else geometry.x
    view = maps_of(tensor, shape, groups)
    if view is None or not view.is_readable(shape[1] // groups, shape[2] * shape[3]):
        return None
    return view


@products_of("conv2d")
def _forward(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    geometry, (x, w, *bias, y) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return convolved(geometry, x, w, bias, y)
    tiles, scratch = forward_plan(geometry, x.dtype, LIMIT_BYTES)
    by_pixels, groups = channels_inside(x), geometry.attributes.groups
    source, target = _maps(geometry, x), _maps(geometry, y)
    found = filters_of(w, geometry.w, groups, by_pixels)
    if found is None or target is None or (geometry.is_pointwise and source is None):
        return NodeCalls(convolved(geometry, x, w, bias, y).calls, scratch)
    filters, channels_last = found
    calls: list[Call] = [_spread(b, y, geometry) for b in bias]
    for tile in tiles:
        taps = source
        if not geometry.is_pointwise:
            size = len(tile.images), len(tile.rows)
            columns = Columns(geometry, *size, by_pixels, channels_last)
            calls.append(unfold(columns, x, WORKSPACE, tile.images.start, tile.rows.start))
            taps = taps_of(columns, columns.operand(x, WORKSPACE))
        assert taps is not None
        maps = _part(geometry, target, tile.images.start, tile.rows.start)
        images, pixels = _joined(len(tile.images), len(tile.rows) * geometry.y[3], taps, maps)
        calls += multiply(
            (geometry.w[0] // groups, pixels, geometry.depth), filters, taps, maps,
            (images, groups), 1.0 if bias else 0.0, compute_type(x.dtype, options.tf32),
        )  # fmt: skip
    return NodeCalls(tuple(calls), scratch)


def _spread(bias: Operand, y: Operand, geometry: Geometry) -> Each:
    """Return a program that fills the output with the bias; products are added to the output
    later."""
    return _copied(geometry.y, bias.on((0, *bias.strides, 0, 0)), y)


def _part(geometry: Geometry, maps: View, image: int, row: int) -> View:
    """Return the matrices `maps` of the output, starting at the given image and row."""
    return maps.moved(image * maps.image + row * geometry.y[3] * maps.right)


def _joined(images: int, pixels: int, *views: View) -> tuple[int, int]:
    """Return (images, pixels) of the products: (1, all pixels) if the images of all views form one
    matrix."""
    if all(view.joins(pixels) for view in views):
        return 1, images * pixels
    return images, pixels


@products_of("conv2d_input_gradient")
def _input_gradient(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    geometry, (dy, w, dx) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return convolved_back(geometry, dy, w, dx)
    tiles, scratch = backward_plan(geometry, dy.dtype, LIMIT_BYTES)
    by_pixels, groups = channels_inside(dx), geometry.attributes.groups
    source, target = _maps(geometry, dy), _maps(geometry, dx)
    found = filters_of(w, geometry.w, groups, by_pixels)
    if found is None or source is None or (geometry.is_pointwise and target is None):
        return NodeCalls(convolved_back(geometry, dy, w, dx).calls, scratch)
    filters, channels_last = found
    calls: list[Call] = []
    for tile in tiles:
        rows = windows_over(geometry, tile.rows)
        size = len(tile.images), max(1, len(rows))
        columns = Columns(geometry, *size, by_pixels, channels_last)
        taps = target if geometry.is_pointwise else taps_of(columns, columns.operand(dx, WORKSPACE))
        assert taps is not None
        if rows:
            maps = _part(geometry, source, tile.images.start, rows.start)
            images, pixels = _joined(len(tile.images), len(rows) * geometry.y[3], maps, taps)
            calls += multiply(
                (geometry.depth, pixels, geometry.w[0] // groups), filters.transposed, maps, taps,
                (images, groups), 0.0, compute_type(dy.dtype, options.tf32),
            )  # fmt: skip
        if not geometry.is_pointwise:
            calls.append(fold(columns, dx, WORKSPACE, tile.images.start, tile.rows, rows.start))
    return NodeCalls(tuple(calls), scratch)


@products_of("conv2d_weight_gradient")
def _weight_gradient(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    geometry, (dy, x, *sums, dw) = _geometry(node), _operands(node, places)
    if _is_depthwise(geometry):
        return correlated(geometry, dy, x, sums, dw, parts_of(geometry))
    plan = weight_plan(geometry, x.dtype, dw.dtype, LIMIT_BYTES)
    groups = geometry.attributes.groups
    found = filters_of(dw, geometry.w, groups, channels_inside(x))
    maps = _maps(geometry, dy)
    taps = _maps(geometry, x) if geometry.is_pointwise else None
    unread = maps is None or (geometry.is_pointwise and taps is None)
    if found is None or (plan.gathered is None and unread):
        calls = correlated(geometry, dy, x, sums, dw, 1).calls
        return NodeCalls(calls, plan.scratch)
    filters, channels_last = found
    tiles, pixels = plan.tiles, geometry.y[2] * geometry.y[3]
    if maps is not None and taps is not None and maps.joins(pixels) and taps.joins(pixels):
        tiles = (Tile(range(geometry.y[0]), range(geometry.y[2])),)
    held = dw
    if plan.total is not None and (plan.pixels or len(tiles) > 1):
        held = Operand("partial", float32, row_major(geometry.w), plan.total)
        summed = filters_of(held, geometry.w, groups, channels_last)
        assert summed is not None
        filters, channels_last = replace(summed[0], image=math.prod(geometry.w)), summed[1]
    in_place = held is dw and sums and places[node.inputs[2]] == places[node.output]
    moved = sums if held is dw and not in_place else []
    products: list[Call] = [_copied(geometry.w, s, dw) for s in moved]
    adds = held is dw and bool(sums)
    most = 1
    for number, tile in enumerate(tiles):
        first, first_calls = _gathered(geometry, plan, tile, dy, maps)
        second, second_calls = _taps(geometry, plan, tile, x, taps, channels_last)
        products += [*first_calls, *second_calls]
        count = len(tile.images) * len(tile.rows) * geometry.y[3]
        parts = plan.parts(count)
        most = max(most, parts)
        products += multiply(
            (geometry.w[0] // groups, geometry.depth, count // parts),
            first.split(count // parts), second.split(count // parts).transposed, filters,
            (parts, groups), 1.0 if adds or number else 0.0,
            compute_type(x.dtype, options.tf32),
        )  # fmt: skip
    if held is not dw:
        products.append(finished(geometry, held, sums, dw, most))
    return NodeCalls(tuple(products), plan.scratch)


def _copied(shape: tuple[int, ...], source: Operand, target: Operand) -> Each:
    named = replace(source, name="x"), replace(target, name="y")
    return Each("copy", shape, named[:1], named[1:], {"y": IDENTITY})


def _gathered(
    geometry: Geometry, plan: WeightPlan, tile: Tile, dy: Operand, maps: View | None
) -> tuple[View, list[Call]]:
    """Return dy with all pixels of a tile as columns of one matrix, and the calls that gather
    them."""
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
    """Return x unfolded, with all pixels of a tile as columns of one matrix, and the calls that
    unfold it."""
    pixels = geometry.y[2] * geometry.y[3]
    if taps is not None and (len(tile.images) == 1 or taps.joins(pixels)):
        return _part(geometry, taps, tile.images.start, tile.rows.start), []
    assert plan.unfolded is not None
    return _brought(geometry, tile, x, plan.unfolded, channels_last)


def _brought(
    geometry: Geometry, tile: Tile, tensor: Operand, workspace: Scratch, channels_last: bool
) -> tuple[View, list[Call]]:
    size = len(tile.images), len(tile.rows)
    columns = Columns(geometry, *size, channels_inside(tensor), channels_last, together=True)
    launch = unfold(columns, tensor, workspace, tile.images.start, tile.rows.start)
    return taps_of(columns, columns.operand(tensor, workspace)), [launch]


def _pointwise(geometry: Geometry) -> Geometry:
    """Return the geometry of a 1 x 1 convolution over dy, for gathering pixels as columns of a
    matrix."""
    groups, filters = geometry.attributes.groups, geometry.y[1]
    window = (filters, filters // groups, 1, 1)
    attributes = Conv2dAttributes(groups=groups)
    return Geometry(attributes, geometry.y, window, geometry.y, geometry.itemsize)
