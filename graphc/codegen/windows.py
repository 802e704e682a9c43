"""Pooling: one thread an element of the output, in a loop over a window.

Gradients run over the windows that hold an element, in the order of the places in them, so sums
have one order and nothing is added by atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphc.codegen.access import indented, parameters
from graphc.codegen.calls import Launch, NodeCalls
from graphc.codegen.elementwise_ops import Places, Rule
from graphc.codegen.grid import grid_kernel, over_grid
from graphc.codegen.layout import Operand, decompose, offset, operand, order_of, widest_index
from graphc.codegen.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node

AXES = ("n", "c", "h", "w")


def own_operands(node: Node, places: Places) -> tuple[list[Operand], list[Operand]]:
    """Inputs and outputs on their own axes."""
    op = node.op
    inputs = [operand(op.input_name(i), v, places[v], v.shape) for i, v in enumerate(node.inputs)]
    outputs = [
        operand(op.output_name(i), v, places[v], v.shape) for i, v in enumerate(node.outputs)
    ]
    return inputs, outputs


def each_element(
    node: Node, inputs: list[Operand], outputs: list[Operand], body: Sequence[str]
) -> Launch:
    """A kernel that runs `body` for each place n, c, h, w of the output."""
    shape, elements = node.outputs[0].shape, node.outputs[0].type.elements
    values, operands = (*node.inputs, *node.outputs), (*inputs, *outputs)
    spans = [(value.shape, o) for value, o in zip(values, operands, strict=True)]
    order = order_of(shape, outputs)
    split, indices = decompose("item", [shape[axis] for axis in order], "o")
    axes = [
        f"const Index {AXES[axis]} = {index};"
        for axis, index in sorted(zip(order, indices, strict=True))
    ]
    kernel = grid_kernel(
        node.op.name,
        elements,
        widest_index(spans),
        parameters(inputs, outputs),
        [*split, *axes, *body],
    )
    return over_grid(kernel, values, elements)


def element(operand: Operand, row: str = "h", column: str = "w") -> str:
    """An element of image n and channel c."""
    return f"{operand.name}[{offset(('n', 'c', row, column), operand.strides)}]"


def _places_of_window(node: Node, body: Sequence[str]) -> str:
    """For the window at h, w: `body` for each place k of it that lies inside, at row and column."""
    a, (height, width) = node.attributes, node.inputs[0].shape[2:]
    inner = [
        f"const int column = int(w) * {a.stride[1]} + j - {a.padding[1]};",
        f"if (column < 0 || column >= {width}) continue;",
        f"const int k = i * {a.window[1]} + j;",
        *body,
    ]
    outer = [
        f"const int row = int(h) * {a.stride[0]} + i - {a.padding[0]};",
        f"if (row < 0 || row >= {height}) continue;",
        f"for (int j = 0; j < {a.window[1]}; ++j) {{\n{indented(inner, 1)}\n}}",
    ]
    return f"for (int i = 0; i < {a.window[0]}; ++i) {{\n{indented(outer, 1)}\n}}"


def _windows_of_place(node: Node, body: Sequence[str]) -> str:
    """For the element at h, w: `body` for each window, at row and column, that holds it as k."""
    a, (height, width) = node.attributes, node.inputs[0].shape[2:]
    inner = [
        f"const int across = int(w) + {a.padding[1]} - j, column = across / {a.stride[1]};",
        f"if (across < 0 || across % {a.stride[1]} || column >= {width}) continue;",
        f"const int k = i * {a.window[1]} + j;",
        *body,
    ]
    outer = [
        f"const int down = int(h) + {a.padding[0]} - i, row = down / {a.stride[0]};",
        f"if (down < 0 || down % {a.stride[0]} || row >= {height}) continue;",
        f"for (int j = 0; j < {a.window[1]}; ++j) {{\n{indented(inner, 1)}\n}}",
    ]
    return f"for (int i = 0; i < {a.window[0]}; ++i) {{\n{indented(outer, 1)}\n}}"


def _max_pool(node: Node, places: Places) -> NodeCalls:
    """The first of equal elements wins; NaN goes through, as on the CPU."""
    inputs, outputs = own_operands(node, places)
    (x,), (y, place) = inputs, outputs
    held = arithmetic_dtype(x.dtype)
    seen = f"widen({element(x, 'Index(row)', 'Index(column)')})"
    body = [
        f"{C_TYPES[held]} best = {literal(float('-inf'), held)};",
        "unsigned char chosen = 0;",
        _places_of_window(
            node,
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


Loop = Callable[[Node, Sequence[str]], str]


def _summed(loop: Loop, chosen: bool, mean: bool) -> Rule:
    """The sum of what the loop meets, or of what a window's place chooses, or its share."""

    def rule(node: Node, places: Places) -> NodeCalls:
        inputs, outputs = own_operands(node, places)
        source, held = inputs[0], arithmetic_dtype(inputs[0].dtype)
        # The place of a window lies with the window: at h, w going forward, else where the loop is.
        window = ("h", "w") if loop is _places_of_window else ("Index(row)", "Index(column)")
        skip = [f"if ({element(inputs[1], *window)} != k) continue;"] if chosen else []
        seen = f"widen({element(source, 'Index(row)', 'Index(column)')})"
        share = f" / {literal(_places(node), held)}" if mean else ""
        body = [
            f"{C_TYPES[held]} total = {literal(0.0, held)};",
            loop(node, [*skip, f"total += {seen};"]),
            f"narrow(total{share}, {element(outputs[0])});",
        ]
        return NodeCalls((each_element(node, inputs, outputs, body),))

    return rule


def _places(node: Node) -> float:
    rows, columns = node.attributes.window
    return float(rows * columns)


RULES: Mapping[str, Rule] = {
    "average_pool2d": _summed(_places_of_window, chosen=False, mean=True),
    "average_pool2d_gradient": _summed(_windows_of_place, chosen=False, mean=True),
    "max_pool2d": _max_pool,
    "max_pool2d_gradient": _summed(_windows_of_place, chosen=True, mean=False),
    "max_pool2d_select": _summed(_places_of_window, chosen=True, mean=False),
}
"""Ops over sliding windows."""
