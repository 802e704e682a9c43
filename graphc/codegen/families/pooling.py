"""Pooling: one thread per element of the output, in a loop over a window.

Gradients iterate over the windows that contain an element, in the order of the element's positions
in them. So sums have a fixed order, and there are no atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphc.codegen.families.maps import each_element, element, own_operands
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import Rule, kernels_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.operands import Places
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.codegen.text.window import input_place, skip_outside, window_over
from graphc.ir.graph import Node

LOOPS = (("i", "h", "down"), ("j", "w", "across"))
"""Names along rows and along columns.

These are the loop counter, the thread's own position, and the position in the loop before it is
divided by the stride.
"""

Axis = Callable[[Node, int], list[str]]
"""Statements that find the position in the loop along an axis, and skip those outside."""


def _tap(node: Node, axis: int) -> str:
    """Return the distance of the loop's position in a window from the window's first."""
    counter, dilation = LOOPS[axis][0], node.attributes.dilation[axis]
    return counter if dilation == 1 else f"{counter} * {dilation}"


def _place_of_window(node: Node, axis: int) -> list[str]:
    """Return statements for an element of the thread's window, along an axis."""
    a, extent = node.attributes, node.inputs[0].shape[2 + axis]
    _, own, _ = LOOPS[axis]
    return [input_place(a, axis, own, _tap(node, axis)), skip_outside(axis, extent)]


def _window_of_place(node: Node, axis: int) -> list[str]:
    """Return statements for a window that contains the thread's element, along an axis."""
    a, extent = node.attributes, node.inputs[0].shape[2 + axis]
    _, own, far = LOOPS[axis]
    *found, skip = window_over(a, axis, own, _tap(node, axis), extent, far)
    return [f"const int {', '.join(found)};", skip]


def _over_window(node: Node, find: Axis, body: Sequence[str]) -> str:
    """Return code that runs `body` for each position k of a window, at the row and column from
    `find`."""
    a = node.attributes
    inner = [*find(node, 1), f"const int k = i * {a.window[1]} + j;", *body]
    outer = [
        *find(node, 0),
        f"for (int j = 0; j < {a.window[1]}; ++j) {{\n{indented(inner, 1)}\n}}",
    ]
    return f"for (int i = 0; i < {a.window[0]}; ++i) {{\n{indented(outer, 1)}\n}}"


@kernels_of("max_pool2d")
def _max_pool(node: Node, places: Places) -> NodeCalls:
    """Return the maximum of each window and its position.

    As on the CPU, the first of equal elements wins, and NaN propagates.
    """
    inputs, outputs = own_operands(node, places)
    (x,), (y, place) = inputs, outputs
    held = arithmetic_dtype(x.dtype)
    seen = f"widen({element(x, 'Index(row)', 'Index(column)')})"
    body = [
        f"{C_TYPES[held]} best = {literal(float('-inf'), held)};",
        "unsigned char chosen = 0;",
        _over_window(
            node,
            _place_of_window,
            [
                f"const {C_TYPES[held]} seen = {seen};",
                "if (seen > best) chosen = k;",
                "best = maximum(best, seen);",
            ],
        ),
        f"narrow(best, {element(y)});",
        f"{element(place)} = chosen;",
    ]
    return NodeCalls((each_element(node, inputs, outputs, body),))


def _summed(find: Axis, chosen: bool, mean: bool) -> Rule:
    """Return the rule of an op that sums over its loop, optionally over chosen positions only, or
    as a mean."""

    def rule(node: Node, places: Places) -> NodeCalls:
        inputs, outputs = own_operands(node, places)
        source, held = inputs[0], arithmetic_dtype(inputs[0].dtype)
        # The chosen position is stored at the window: at h, w in the forward pass, else at the
        # loop's position.
        window = ("h", "w") if find is _place_of_window else ("Index(row)", "Index(column)")
        skip = [f"if ({element(inputs[1], *window)} != k) continue;"] if chosen else []
        seen = f"widen({element(source, 'Index(row)', 'Index(column)')})"
        share = f" / {literal(_places(node), held)}" if mean else ""
        body = [
            f"{C_TYPES[held]} total = {literal(0.0, held)};",
            _over_window(node, find, [*skip, f"total += {seen};"]),
            f"narrow(total{share}, {element(outputs[0])});",
        ]
        return NodeCalls((each_element(node, inputs, outputs, body),))

    return rule


def _places(node: Node) -> float:
    rows, columns = node.attributes.window
    return float(rows * columns)


kernels_of("average_pool2d")(_summed(_place_of_window, chosen=False, mean=True))
kernels_of("average_pool2d_gradient")(_summed(_window_of_place, chosen=False, mean=True))
kernels_of("max_pool2d_gradient")(_summed(_window_of_place, chosen=True, mean=False))
kernels_of("max_pool2d_select")(_summed(_place_of_window, chosen=True, mean=False))
