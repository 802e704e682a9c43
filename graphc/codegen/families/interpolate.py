"""Interpolation at computed positions (places): one thread per result.

In the gradient of the maps, one warp per element searches all places of its image for those that
read it. Lanes first compare places, then take channels. So the terms are added in the order of the
places, without atomics and without sorting.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import Launch, NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import BLOCK, WARP, grid_kernel, over_grid
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.maps import each_element, own_operands
from graphc.codegen.text.operands import Operand, Places, decompose, offset, widest_index
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node
from graphc.ir.types import DType, float32
from graphc.ops.cpu.interpolation import CUBIC
from graphc.ops.interpolate import TAPS

LANE_CHANNELS = 8
"""Number of channels of one element that a lane sums at a time."""

FAR = 2.0**29
"""Absolute value to which positions are clamped, because indices have 32 bits."""


class _Sampler:
    """Writer of C++ for the taps of a position along each axis, in the dtype of the arithmetic."""

    def __init__(self, node: Node, extents: Sequence[int], places: Operand, held: DType) -> None:
        self.extents, self.places, self.held = tuple(extents), places, held
        self.form, self.outside = node.attributes.form, node.attributes.outside
        self.count, self.real = TAPS[self.form], C_TYPES[held]
        self.suffix = "f" if held == float32 else ""

    def number(self, value: float) -> str:
        return literal(value, self.held)

    def along(self, axis: int, point: Sequence[str]) -> list[str]:
        """Return statements that compute, for each tap of an axis, weight, element, and a flag for
        being inside."""
        at = offset((*point, str(len(self.extents) - 1 - axis)), self.places.strides)
        far = self.number(FAR)
        rounded = f"rint{self.suffix}" if self.count == 1 else f"floor{self.suffix}"
        return [
            f"const {self.real} place{axis} = widen({self.places.name}[{at}]);",
            f"const {self.real} base{axis} = {rounded}(place{axis});",
            f"const int first{axis} = base{axis} > -{far} ? int(base{axis} < {far} ? base{axis} :"
            f" {far}) : int(-{far});",
            *self._weights(axis),
            f"int element{axis}[{self.count}];",
            f"bool inside{axis}[{self.count}];",
            f"for (int tap = 0; tap < {self.count}; ++tap) {{",
            indented(self._inside(axis), 1),
            "}",
        ]

    def _weights(self, axis: int) -> list[str]:
        head, slope = (f"const {self.real} {n}{axis}[{self.count}] =" for n in ("weight", "slope"))
        if self.count == 1:
            return [f"{head} {{1}};"]
        part = f"const {self.real} part{axis} = place{axis} - base{axis};"
        if self.count == 2:
            one = self.number(1.0)
            return [
                part, f"{head} {{{one} - part{axis}, part{axis}}};", f"{slope} {{-{one}, {one}}};"
            ]  # fmt: skip
        distances = [f"(part{axis} + 1)", f"part{axis}", f"(1 - part{axis})", f"(2 - part{axis})"]
        heights = [self._height(d, tap in (1, 2)) for tap, d in enumerate(distances)]
        steepness = [
            f"{sign}({self._slope(d, tap in (1, 2))})"
            for tap, (d, sign) in enumerate(zip(distances, ("", "", "-", "-"), strict=True))
        ]
        return [part, f"{head} {{{', '.join(heights)}}};", f"{slope} {{{', '.join(steepness)}}};"]

    def _height(self, d: str, is_near: bool) -> str:
        a, n = CUBIC, self.number
        if is_near:
            return f"({n(a + 2)} * {d} - {n(a + 3)}) * {d} * {d} + {n(1.0)}"
        return f"(({n(a)} * {d} + {n(-5 * a)}) * {d} + {n(8 * a)}) * {d} + {n(-4 * a)}"

    def _slope(self, d: str, is_near: bool) -> str:
        a, n = CUBIC, self.number
        if is_near:
            return f"({n(3 * (a + 2))} * {d} - {n(2 * (a + 3))}) * {d}"
        return f"({n(3 * a)} * {d} + {n(-10 * a)}) * {d} + {n(8 * a)}"

    def _inside(self, axis: int) -> list[str]:
        """Return statements for the element of one tap; elements outside of the map are replaced by
        the node's `outside` mode."""
        extent, lead = self.extents[axis], (self.count - 1) // 2
        lines = [f"int at = first{axis} + tap - {lead};"]
        if self.outside in ("reflect", "symmetric"):
            period = 2 * extent if self.outside == "symmetric" else max(1, 2 * (extent - 1))
            last = period - 1 if self.outside == "symmetric" else period
            lines += [
                f"at = (at % {period} + {period}) % {period};",
                f"if (at >= {extent}) at = {last} - at;",
            ]
        is_inside = f"at >= 0 && at < {extent}" if self.outside == "zeros" else "true"
        return [
            *lines,
            f"inside{axis}[tap] = {is_inside};",
            f"element{axis}[tap] = at < 0 ? 0 : at < {extent} ? at : {extent - 1};",
        ]

    def all_axes(self, point: Sequence[str]) -> list[str]:
        return [line for axis in range(len(self.extents)) for line in self.along(axis, point)]

    def over_taps(self, body: Sequence[str]) -> str:
        """Return code that runs `body` for each combination of taps t0, t1, ... inside the map."""
        axes = range(len(self.extents))
        skip = " && ".join(f"inside{axis}[t{axis}]" for axis in axes)
        text = indented([f"if (!({skip})) continue;", *body], 1)
        for axis in reversed(axes):
            head = f"for (int t{axis} = 0; t{axis} < {self.count}; ++t{axis}) {{"
            text = f"{head}\n{text}\n}}"
            if axis:
                text = indented([text], 1)
        return text

    def weight(self, sloped: int | None = None) -> str:
        names = ["slope" if axis == sloped else "weight" for axis in range(len(self.extents))]
        return " * ".join(f"{name}{axis}[t{axis}]" for axis, name in enumerate(names))

    @property
    def elements(self) -> list[str]:
        return [f"Index(element{axis}[t{axis}])" for axis in range(len(self.extents))]


@kernels_of("interpolate")
def _gathered(node: Node, places: Places) -> NodeCalls:
    (x, where), (y,) = own_operands(node, places)
    held = arithmetic_dtype(x.dtype)
    sampler = _Sampler(node, node.inputs[0].shape[2:], where, held)
    names = ["n", "c", *(f"p{axis}" for axis in range(node.output.type.rank - 2))]
    read = f"widen(x[{offset(('n', 'c', *sampler.elements), x.strides)}])"
    body = [
        *sampler.all_axes(("n", *names[2:])),
        f"{sampler.real} total = {sampler.number(0.0)};",
        sampler.over_taps([f"total += {sampler.weight()} * {read};"]),
        f"narrow(total, y[{offset(names, y.strides)}]);",
    ]
    return NodeCalls((each_element(node, [x, where], [y], body, names),))


@kernels_of("interpolate_place_gradient")
def _sloped(node: Node, places: Places) -> NodeCalls:
    """Return the calls of the gradient with respect to places: one thread per place sums over
    channels and taps."""
    (dy, x, where), (dplaces,) = own_operands(node, places)
    shape, channels = node.inputs[2].shape, node.inputs[1].shape[1]
    sampler = _Sampler(node, node.inputs[1].shape[2:], where, arithmetic_dtype(x.dtype))
    points = shape[0] * node.inputs[2].type.elements // (shape[0] * shape[-1])
    split, names = decompose("item", shape[:-1], "p")
    real, zero, axes = sampler.real, sampler.number(0.0), range(len(sampler.extents))
    read = f"widen(x[{offset((names[0], 'c', *sampler.elements), x.strides)}])"
    handed = f"widen(dy[{offset((names[0], 'c', *names[1:]), dy.strides)}])"
    dot = f"for (Index c = 0; c < {channels}u; ++c) dot += {handed} * {read};"
    body = [
        *split,
        *sampler.all_axes(names),
        *(f"{real} total{axis} = {zero};" for axis in axes),
        sampler.over_taps(
            [
                f"{real} dot = {zero};",
                dot,
                *(f"total{axis} += {sampler.weight(axis)} * dot;" for axis in axes),
            ]
        ),
    ]
    for axis in axes:
        at = offset((*names, str(len(axes) - 1 - axis)), dplaces.strides)
        body.append(f"narrow(total{axis}, dplaces[{at}]);")
    operands = [dy, x, where, dplaces]
    index = widest_index(_spans(node, operands))
    kernel = grid_kernel(node.op.name, points, index, parameters(operands[:3], [dplaces]), body)
    return NodeCalls((over_grid(kernel, (*node.inputs, node.output), points),))


def _spans(node: Node, operands: Sequence[Operand]) -> list[tuple[tuple[int, ...], Operand]]:
    values = (*node.inputs, *node.outputs)
    return [(value.shape, o) for value, o in zip(values, operands, strict=True)]


@kernels_of("interpolate_input_gradient")
def _scattered(node: Node, places: Places) -> NodeCalls:
    (dy, where), (dx,) = own_operands(node, places)
    batch, channels, *extents = node.output.shape
    sampler = _Sampler(node, extents, where, arithmetic_dtype(dy.dtype))
    tiles = -(-channels // (WARP * LANE_CHANNELS))
    warps = batch * tiles
    for extent in extents:
        warps *= extent
    body = _owned_sums(node, sampler, dy, dx, tiles, warps)
    operands = [dy, where, dx]
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters([dy, where], [dx])}) {{\n'
        f"    using Index = {widest_index(_spans(node, operands))};\n{indented(body, 1)}\n}}\n"
    )
    grid = -(-warps * WARP // BLOCK)
    return NodeCalls((Launch(named(node.op.name, text), (*node.inputs, node.output), grid, BLOCK),))


def _owned_sums(
    node: Node, sampler: _Sampler, dy: Operand, dx: Operand, tiles: int, warps: int
) -> list[str]:
    """Return statements with which a warp sums the gradient of some channels of one element. Each
    lane tests if one of 32 places reads the element. The lanes vote, and the terms of these places
    are added in order.
    """
    batch, channels, *extents = node.output.shape
    shape = node.inputs[1].shape[1:-1]
    points = 1
    for extent in shape:
        points *= extent
    owner, own = decompose("number", (batch, *extents, tiles), "w")
    split, names = decompose("point", shape, "p")
    mine = " && ".join(f"element{a}[t{a}] == int({own[1 + a]})" for a in range(len(extents)))
    weight = [
        *split,
        *sampler.all_axes((own[0], *names)),
        f"{sampler.real} total = {sampler.number(0.0)};",
        sampler.over_taps([f"if ({mine}) total += {sampler.weight()};"]),
        "return total;",
    ]
    handed = offset((own[0], "c", *names), dy.strides)
    stored = offset((own[0], "c", *own[1 : 1 + len(extents)]), dx.strides)
    every = f"#pragma unroll\nfor (int t = 0; t < {LANE_CHANNELS}; ++t)"
    channel = f"const Index c = first + t * {WARP}u;"
    return [
        "const Index lane = threadIdx.x % WARP;",
        "const Index warp = (Index(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;",
        f"const bool exists = warp < {warps}u;",
        f"const Index number = exists ? warp : {warps - 1}u;",
        *owner,
        f"const Index first = {own[-1]} * {WARP * LANE_CHANNELS}u + lane;",
        f"const auto weight_at = [&](Index point) {{\n{indented(weight, 1)}\n}};",
        f"{sampler.real} sum[{LANE_CHANNELS}] = {{}};",
        f"for (Index base = 0; base < {points}u; base += WARP) {{",
        "    const Index seen = base + lane;",
        f"    const bool hit = exists && seen < {points}u && weight_at(seen) != 0;",
        "    unsigned hits = __ballot_sync(0xffffffffu, hit);",
        "    for (; hits; hits &= hits - 1) {",
        "        const Index point = base + __ffs(hits) - 1;",
        indented([f"const {sampler.real} share = weight_at(point);", *split], 2),
        indented([f"{every} {{\n    {channel}"], 2),
        f"            if (c < {channels}u) sum[t] += share * widen(dy[{handed}]);",
        "        }",
        "    }",
        "}",
        f"{every} {{\n    {channel}",
        f"    if (exists && c < {channels}u) narrow(sum[t], dx[{stored}]);",
        "}",
    ]
