"""CUDA kernels of window programs: one thread per element of the output, in a loop over its taps.

Sums have a fixed order, and there are no atomics.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import Launch
from graphc.codegen.text.access import indented
from graphc.codegen.text.maps import element, over_points
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.codegen.text.window import input_place, skip_outside, window_over
from graphc.codegen.windows.program import Windowed

LOOPS = (("i", "h", "down"), ("j", "w", "across"))
"""Names of C++ variables for rows and for columns: the loop counter, the thread's own position, and
the position in the loop before division by the stride.
"""

HERE = ("Index(row)", "Index(column)")
"""C++ for the indices of the position that a tap reads."""


def windows_kernel(program: Windowed) -> Launch:
    """Return the launch that runs a window program."""
    source, *selected = program.inputs
    held = arithmetic_dtype(source.dtype)
    kind, seen = C_TYPES[held], f"widen({element(source, *HERE)})"
    if program.combine == "Max":
        y, place = program.outputs
        take = [
            f"const {kind} seen = {seen};",
            "if (seen > best) chosen = k;",
            "best = maximum(best, seen);",
        ]
        body = [
            f"{kind} best = {literal(float('-inf'), held)};",
            "unsigned char chosen = 0;",
            _over_taps(program, take),
            f"narrow(best, {element(y)});",
            f"{element(place)} = chosen;",
        ]
    else:
        window = HERE if program.back else ("h", "w")
        skip = [f"if ({element(each, *window)} != k) continue;" for each in selected]
        share = f" / {literal(program.divisor, held)}" if program.divisor != 1 else ""
        body = [
            f"{kind} total = {literal(0.0, held)};",
            _over_taps(program, [*skip, f"total += {seen};"]),
            f"narrow(total{share}, {element(program.outputs[0])});",
        ]
    return over_points(program.op, program.shapes, program.inputs, program.outputs, body)


def _over_taps(program: Windowed, body: Sequence[str]) -> str:
    """Return code that runs `body` for each tap k, which reads the position `HERE`."""
    rows, columns = program.windows.size
    inner = [*_place(program, 1), f"const int k = i * {columns} + j;", *body]
    outer = [
        *_place(program, 0),
        f"for (int j = 0; j < {columns}; ++j) {{\n{indented(inner, 1)}\n}}",
    ]
    return f"for (int i = 0; i < {rows}; ++i) {{\n{indented(outer, 1)}\n}}"


def _place(program: Windowed, axis: int) -> list[str]:
    """Return statements for the position that a tap reads along an axis; they skip the padding."""
    windows, extent = program.windows, program.read[2 + axis]
    counter, own, far = LOOPS[axis]
    tap = counter if windows.dilation[axis] == 1 else f"{counter} * {windows.dilation[axis]}"
    if not program.back:
        return [input_place(windows, axis, own, tap), skip_outside(axis, extent)]
    *found, skip = window_over(windows, axis, own, tap, extent, far)
    return [f"const int {', '.join(found)};", skip]
