"""Resampling of maps to another height and width: one thread per element, in a loop over its
inputs.

Coordinates and weights are computed in float64, as in the NumPy kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.maps import each_element, element, own_operands
from graphc.codegen.text.operands import Places
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype
from graphc.ir.graph import Node

HERE = ("Index(row)", "Index(column)")


def _each(variable: str, first: str, past: str, body: Sequence[str]) -> str:
    head = f"for (int {variable} = {first}; {variable} < {past}; ++{variable})"
    return f"{head} {{\n{indented(body, 1)}\n}}"


def _share(index: str, parts: int, extent: int) -> tuple[str, str]:
    """Return statements for the range of elements that an averaging window reads. The same formula,
    with `parts` and `extent` swapped, gives the windows that read an element.
    """
    return f"int({index} * {extent}u / {parts}u)", (
        f"int((({index} + 1) * {extent}u + {parts - 1}u) / {parts}u)"
    )


@kernels_of("adaptive_average_pool2d")
def _adaptive_mean(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (x,), (y,) = inputs, outputs
    held = C_TYPES[arithmetic_dtype(x.dtype)]
    (_, _, height, width), (_, _, rows, columns) = node.inputs[0].shape, node.output.shape
    (top, bottom), (left, right) = _share("h", rows, height), _share("w", columns, width)
    body = [
        f"const int top = {top}, bottom = {bottom};",
        f"const int left = {left}, right = {right};",
        f"{held} total = 0;",
        _each(
            "row", "top", "bottom",
            [_each("column", "left", "right", [f"total += widen({element(x, *HERE)});"])],
        ),
        f"narrow(total / {held}((bottom - top) * (right - left)), {element(y)});",
    ]  # fmt: skip
    return NodeCalls((each_element(node, inputs, outputs, body),))


@kernels_of("adaptive_average_pool2d_gradient")
def _adaptive_mean_gradient(node: Node, places: Places) -> NodeCalls:
    inputs, outputs = own_operands(node, places)
    (dy,), (dx,) = inputs, outputs
    held = C_TYPES[arithmetic_dtype(dy.dtype)]
    (_, _, rows, columns), (_, _, height, width) = node.inputs[0].shape, node.output.shape
    (top, bottom), (left, right) = (
        _share("Index(row)", rows, height),
        _share("Index(column)", columns, width),
    )
    inner = [
        f"const int across = {right} - {left};",
        f"total += widen({element(dy, *HERE)}) / {held}(down * across);",
    ]
    body = [
        f"{held} total = 0;",
        _each(
            "row", *_share("h", height, rows),
            [
                f"const int down = {bottom} - {top};",
                _each("column", *_share("w", width, columns), inner),
            ],
        ),
        f"narrow(total, {element(dx)});",
    ]  # fmt: skip
    return NodeCalls((each_element(node, inputs, outputs, body),))


def _between(index: str, prefix: str, factor: int, extent: int) -> list[str]:
    """Return statements that interpolate between two elements of an axis for an upsampled element.
    They compute the index of the first element and the weight of the second.
    """
    return [
        f"const double {prefix}_free = (double({index}) + 0.5) / {float(factor)!r} - 0.5;",
        f"const double {prefix}_from = {prefix}_free > 0.0 ? {prefix}_free : 0.0;",
        f"const double {prefix}_centre = {prefix}_from < {extent - 1.0!r}"
        f" ? {prefix}_from : {extent - 1.0!r};",
        f"const int {prefix} = int({prefix}_centre);",
        f"const double {prefix}_part = {prefix}_centre - {prefix};",
    ]


@kernels_of("upsample_bilinear2d")
def _bilinear(node: Node, places: Places) -> NodeCalls:
    """Return the calls of bilinear upsampling, which interpolates columns before rows."""
    inputs, outputs = own_operands(node, places)
    (x,), (y,) = inputs, outputs
    held, factor = C_TYPES[arithmetic_dtype(x.dtype)], node.attributes.factor
    _, _, height, width = node.inputs[0].shape

    def row(name: str, down: str) -> list[str]:
        near, far = (element(x, f"Index({down})", f"Index(left{side})") for side in ("", " + 1"))
        return [
            f"{held} {name} = widen({near}) * {held}(1.0 - left_part);",
            f"if (left_part > 0.0) {name} += widen({far}) * {held}(left_part);",
        ]

    body = [
        *_between("h", "top", factor, height),
        *_between("w", "left", factor, width),
        *row("above", "top"),
        f"{held} total = above * {held}(1.0 - top_part);",
        f"if (top_part > 0.0) {{\n{indented(row('below', 'top + 1'), 1)}",
        f"    total += below * {held}(top_part);\n}}",
        f"narrow(total, {element(y)});",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body),))


@kernels_of("upsample_bilinear2d_gradient")
def _bilinear_gradient(node: Node, places: Places) -> NodeCalls:
    """Return the calls of the gradient of bilinear upsampling. Each element sums over the upsampled
    elements that read it, column by column."""
    inputs, outputs = own_operands(node, places)
    (dy,), (dx,) = inputs, outputs
    held, factor = C_TYPES[arithmetic_dtype(dy.dtype)], node.attributes.factor
    _, _, height, width = node.output.shape

    def reach(index: str, extent: int) -> tuple[str, str]:
        low = f"(2 * int({index}) - 1) * {factor} / 2"
        high = f"((2 * int({index}) + 3) * {factor} + 1) / 2"
        limit = extent * factor
        return f"{index} ? {low} : 0", f"{high} < {limit} ? {high} : {limit}"

    def weight(prefix: str, index: str) -> str:
        near, far = f"{held}(1.0 - {prefix}_part)", f"{held}({prefix}_part)"
        at = f"int({index})"
        return f"{prefix} == {at} ? {near} : {prefix} + 1 == {at} ? {far} : {held}(0)"

    down = [
        *_between("row", "top", factor, height),
        f"const {held} share = {weight('top', 'h')};",
        f"if (share != 0) sum += widen({element(dy, *HERE)}) * share;",
    ]
    across = [
        *_between("column", "left", factor, width),
        f"const {held} part = {weight('left', 'w')};",
        "if (part == 0) continue;",
        f"{held} sum = 0;",
        _each("row", "top_first", "top_past", down),
        "total += sum * part;",
    ]
    (top, bottom), (left, right) = reach("h", height), reach("w", width)
    body = [
        f"const int top_first = {top}, top_past = {bottom};",
        f"const int left_first = {left}, left_past = {right};",
        f"{held} total = 0;",
        _each("column", "left_first", "left_past", across),
        f"narrow(total, {element(dx)});",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body),))
