"""Means and maxima of bins of regions (RoIAlign): one thread per element of the result.

In the gradient, a thread owns an element of the maps and iterates over all regions in order.
So sums have a fixed order, and there are no atomics. Positions are computed in float64, as on
the CPU.
"""

from __future__ import annotations

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.maps import each_element, own_operands
from graphc.codegen.text.operands import Operand, Places, offset
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node


def _spans(node: Node, rois: Operand, region: str) -> list[str]:
    """Return statements for the start of a region along both axes, and for the sizes of its
    bins."""
    a, lines = node.attributes, []
    shift = 0.5 if a.aligned else 0.0
    for axis, (first, last) in enumerate((("1", "3"), ("0", "2"))):
        for name, corner in (("start", first), ("end", last)):
            at = offset((region, corner), rois.strides)
            lines.append(
                f"const double {name}{axis} = double(widen(rois[{at}])) * {a.scale!r} - {shift!r};"
            )
        size = f"end{axis} - start{axis}"
        if not a.aligned:
            size = f"({size} > 1.0 ? {size} : 1.0)"
        lines += [
            f"const double size{axis} = {size}, bin{axis} = size{axis} / {a.bins[axis]!r}.0;",
            f"const double count{axis} = {f'{a.ratio}.0' if a.ratio else f'ceil(bin{axis})'};",
            f"const double step{axis} = bin{axis} / count{axis};",
        ]
    return lines


def _over_points(node: Node, axis: int, number: str, extent: int, body: list[str]) -> str:
    """Return code that runs `body` for each point of a bin.

    `body` may use the two elements around the point and the distance from the first one.
    """
    inner = [
        f"const double free{axis} = begin{axis} + (i{axis} + 0.5) * step{axis};",
        f"if (!(free{axis} >= -1.0 && free{axis} <= {extent}.0)) continue;",
        f"const double place{axis} = free{axis} > 0.0 ? free{axis} : 0.0;",
        f"const bool ends{axis} = int(place{axis}) >= {extent - 1};",
        f"const int near{axis} = ends{axis} ? {extent - 1} : int(place{axis});",
        f"const int far{axis} = ends{axis} ? {extent - 1} : near{axis} + 1;",
        f"const double part{axis} = ends{axis} ? 0.0 : place{axis} - near{axis};",
        *body,
    ]
    lines = [
        f"const double begin{axis} = start{axis} + {number} * bin{axis};",
        f"double i{axis} = 0.0, past{axis} = count{axis};",
    ]
    if not node.attributes.ratio:  # a count may be huge: skip points outside
        lines += [
            f"const double first{axis} = (-1.0 - begin{axis}) / step{axis} - 2.0;",
            f"const double last{axis} = ({extent}.0 - begin{axis}) / step{axis} + 2.0;",
            f"if (first{axis} > 0.0) i{axis} = floor(first{axis});",
            f"if (!(last{axis} >= past{axis})) past{axis} = last{axis} > 0.0 ? last{axis} : 0.0;",
        ]
    loop = f"for (; i{axis} < past{axis}; ++i{axis}) {{\n{indented(inner, 1)}\n}}"
    return "\n".join([*lines, loop])


@kernels_of("roi_align")
def _pooled(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (x, rois, batch), (y,) = inputs, outputs
    images, _, height, width = node.inputs[0].shape
    held = arithmetic_dtype(x.dtype)
    real = C_TYPES[held]

    def read(row: str, column: str) -> str:
        at = offset(("image", "c", f"Index({row}0)", f"Index({column}1)"), x.strides)
        return f"widen(x[{at}])"

    near, far = (
        f"({real}(1.0 - part1) * {read(row, 'near')} + {real}(part1) * {read(row, 'far')})"
        for row in ("near", "far")
    )
    total = f"total += {real}(1.0 - part0) * {near} + {real}(part0) * {far};"
    across = _over_points(node, 1, "double(q)", width, [total])
    body = [
        *_image(batch, images, "r"),
        *_spans(node, rois, "r"),
        f"{real} total = {literal(0.0, held)};",
        _over_points(node, 0, "double(p)", height, [across]),
        "const double points = count0 * count1;",
        f"narrow(total / {real}(points > 1.0 ? points : 1.0),"
        f" y[{offset(('r', 'c', 'p', 'q'), y.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body, ("r", "c", "p", "q")),))


@kernels_of("roi_align_max")
def _largest(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (x, rois, batch), (y, place, weight) = inputs, outputs
    images, _, height, width = node.inputs[0].shape
    held = arithmetic_dtype(x.dtype)
    real = C_TYPES[held]
    element = f"widen(x[{offset(('image', 'c', 'Index(row0)', 'Index(row1)'), x.strides)}])"

    def sides(axis: int, inner: list[str]) -> list[str]:
        """Return a loop over the two elements around a point along an axis. An element with
        weight 0 is skipped."""
        each = [
            f"const double share{axis} = side{axis} ? part{axis} : 1.0 - part{axis};",
            f"if (share{axis} == 0.0) {{ has_zero = true; continue; }}",
            f"const int row{axis} = side{axis} ? far{axis} : near{axis};",
            *inner,
        ]
        loop = f"for (int side{axis} = 0; side{axis} < 2; ++side{axis})"
        return [f"met{axis} += 1.0;", f"{loop} {{\n{indented(each, 1)}\n}}"]

    def axis(number: int, bin: str, extent: int, inner: list[str]) -> list[str]:
        """Return code that runs `inner` for each element along an axis.

        If the loop visits fewer points than `count`, some point is outside of the map.
        """
        return [
            f"double met{number} = 0.0;",
            _over_points(node, number, bin, extent, sides(number, inner)),
            f"if (met{number} < count{number}) has_zero = true;",
        ]

    take = [
        f"const {real} found = {real}(share0) * ({real}(share1) * {element});",
        f"if (found > best) {{ best = found; best_place = row0 * {width} + row1;"
        f" best_weight = {real}(share0) * {real}(share1); }}",
        "else if (found != found) best = found;",
        "has_any = true;",
    ]
    at = ("r", "c", "p", "q")
    body = [
        *_image(batch, images, "r"),
        *_spans(node, rois, "r"),
        f"{real} best = -infinite({literal(0.0, held)}), best_weight = {literal(0.0, held)};",
        "int best_place = 0;",
        "bool has_zero = false, has_any = false;",
        *axis(0, "double(p)", height, axis(1, "double(q)", width, take)),
        "if (!has_any || (has_zero && best < 0)) { best = 0; best_place = 0; best_weight = 0; }",
        f"narrow(best, y[{offset(at, y.strides)}]);",
        f"place[{offset(at, place.strides)}] = best_place;",
        f"narrow(best_weight, weight[{offset(at, weight.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body, at),))


@kernels_of("roi_align_max_gradient")
def _spread_chosen(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (dy, batch, place, weight), (dx,) = inputs, outputs
    images, _, _, width = node.output.shape
    regions, _, rows, columns = node.inputs[0].shape
    held = arithmetic_dtype(dy.dtype)
    at = ("r", "c", "p", "q")
    product = f"widen(dy[{offset(at, dy.strides)}]) * widen(weight[{offset(at, weight.strides)}])"
    hit = f"if (place[{offset(at, place.strides)}] == own) total += {product};"
    bins = f"for (Index p = 0; p < {rows}u; ++p) for (Index q = 0; q < {columns}u; ++q) {hit}"
    each = [*_image(batch, images, "r"), f"if (image == n) {bins}"]
    body = [
        f"const int own = int(h) * {width} + int(w);",
        f"{C_TYPES[held]} total = {literal(0.0, held)};",
        f"for (Index r = 0; r < {regions}u; ++r) {{\n{indented(each, 1)}\n}}",
        f"narrow(total, dx[{offset(('n', 'c', 'h', 'w'), dx.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body),))


@kernels_of("roi_align_max_select")
def _select_chosen(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (x, batch, place, weight), (y,) = inputs, outputs
    images, _, height, width = node.inputs[0].shape
    at, last = ("r", "c", "p", "q"), height * width - 1
    source = offset(("image", "c", f"own / {width}u", f"own % {width}u"), x.strides)
    body = [
        *_image(batch, images, "r"),
        f"const int named = place[{offset(at, place.strides)}];",
        f"const Index own = named < 0 ? 0 : named < {last} ? named : {last};",
        f"narrow(widen(x[{source}]) * widen(weight[{offset(at, weight.strides)}]),"
        f" y[{offset(at, y.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body, at),))


def _image(batch: Operand, images: int, region: str) -> list[str]:
    """Return statements that read the index of a region's image; an index out of range is
    clamped."""
    at = offset((region,), batch.strides)
    return [
        f"const long long number = batch[{at}];",
        f"const Index image = number < 0 ? 0 : number < {images} ? number : {images - 1};",
    ]


@kernels_of("roi_align_gradient")
def _spread(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (dy, rois, batch), (dx,) = inputs, outputs
    images, _, height, width = node.output.shape
    regions, (rows, columns) = node.inputs[1].shape[0], node.attributes.bins
    held = arithmetic_dtype(dy.dtype)
    real = C_TYPES[held]

    def weight(axis: int, own: str) -> list[str]:
        name = f"weight{axis}"
        return [
            f"if (near{axis} == int({own})) {name} += 1.0 - part{axis};",
            f"if (far{axis} == int({own})) {name} += part{axis};",
        ]

    def outside(axis: int, own: str) -> str:
        low = f"(size{axis} > 0.0 ? start{axis} : end{axis})"
        high = f"(size{axis} > 0.0 ? start{axis} + size{axis} : start{axis})"
        return (
            f"(double({own}) > 0.0 && {low} > double({own}) + 2.0) || {high} < double({own}) - 2.0"
        )

    handed = f"widen(dy[{offset(('r', 'c', 'p', 'q'), dy.strides)}])"
    across = [
        "double weight1 = 0.0;",
        _over_points(node, 1, "double(q)", width, weight(1, "w")),
        f"if (weight1 != 0.0) total += {real}(weight0 / count0 * (weight1 / count1)) * {handed};",
    ]
    down = [
        "double weight0 = 0.0;",
        _over_points(node, 0, "double(p)", height, weight(0, "h")),
        "if (weight0 == 0.0) continue;",
        f"for (Index q = 0; q < {columns}u; ++q) {{\n{indented(across, 1)}\n}}",
    ]
    each = [
        *_image(batch, images, "r"),
        "if (image != n) continue;",
        *_spans(node, rois, "r"),
        f"if ({outside(0, 'h')} || {outside(1, 'w')}) continue;",
        f"for (Index p = 0; p < {rows}u; ++p) {{\n{indented(down, 1)}\n}}",
    ]
    body = [
        f"{real} total = {literal(0.0, held)};",
        f"for (Index r = 0; r < {regions}u; ++r) {{\n{indented(each, 1)}\n}}",
        f"narrow(total, dx[{offset(('n', 'c', 'h', 'w'), dx.strides)}]);",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body),))
