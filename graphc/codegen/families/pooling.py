"""Pooling: one thread an element of the output, in a loop over a window.

Gradients run over the windows that hold an element, in the order of the places in them, so sums
have one order and nothing is added by atomics.
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
"""Names along rows and along columns: the loop's counter, the thread's own place, and the place
that the loop meets before it is divided by the stride."""

Axis = Callable[[Node, int], list[str]]
"""Statements that find the place which a loop meets along an axis, and skip those outside."""


def _tap(node: Node, axis: int) -> str:
    """How far the loop's place in a window lies from its first."""
    counter, dilation = LOOPS[axis][0], node.attributes.dilation[axis]
    return counter if dilation == 1 else f"{counter} * {dilation}"


def _place_of_window(node: Node, axis: int) -> list[str]:
    """Statements for an element of the thread's window, along an axis."""
    a, extent = node.attributes, node.inputs[0].shape[2 + axis]
    _, own, _ = LOOPS[axis]
    return [input_place(a, axis, own, _tap(node, axis)), skip_outside(axis, extent)]


def _window_of_place(node: Node, axis: int) -> list[str]:
    """Statements for a window that holds the thread's element, along an axis."""
    a, extent = node.attributes, node.inputs[0].shape[2 + axis]
    _, own, far = LOOPS[axis]
    *found, skip = window_over(a, axis, own, _tap(node, axis), extent, far)
    return [f"const int {', '.join(found)};", skip]


def _over_window(node: Node, find: Axis, body: Sequence[str]) -> str:
    """`body` for each place k of a window, at the row and column that `find` gives."""
    a = node.attributes
    inner = [*find(node, 1), f"const int k = i * {a.window[1]} + j;", *body]
    outer = [
        *find(node, 0),
        f"for (int j = 0; j < {a.window[1]}; ++j) {{\n{indented(inner, 1)}\n}}",
    ]
    return f"for (int i = 0; i < {a.window[0]}; ++i) {{\n{indented(outer, 1)}\n}}"


@kernels_of("max_pool2d")
def _max_pool(node: Node, places: Places) -> NodeCalls:
    """The maximum of each window and its place: the first of equal elements wins, and NaN goes
    through, as on the CPU."""
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
    """The rule of an op that sums what the loop meets, or of that what a window has chosen, or that
    takes its mean."""

    def rule(node: Node, places: Places) -> NodeCalls:
        inputs, outputs = own_operands(node, places)
        source, held = inputs[0], arithmetic_dtype(inputs[0].dtype)
        # The place of a window lies with the window: at h, w going forward, else where the loop is.
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
