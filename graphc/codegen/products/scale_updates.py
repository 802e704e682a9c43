"""Updates of the scales of 8-bit operands: one launch for many of them, a block for each.

The states of an operand have 72 bytes, so a launch takes longer to start than to run.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import Launch
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import BLOCK
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.scalar import literal
from graphc.ir.graph import Node
from graphc.ir.types import LARGEST, float32
from graphc.ops.float8 import HISTORY, MOST_SCALE

POINTERS = 3
"""Parameters for each operand: its scale, its history, and the maxima of this step."""


def scale_updates(nodes: Sequence[Node]) -> Launch:
    """Return one launch for `scale_update` nodes of one dtype, which overwrite their states."""
    limit = literal(LARGEST[nodes[0].attributes.stored], float32)
    names = [f"{name}_{i}" for i in range(len(nodes)) for name in ("scale", "history", "maxima")]
    rows = [
        f"case {i}: scale = scale_{i}; history = history_{i}; maxima = maxima_{i}; "
        f"count = {node.inputs[2].type.elements}u; break;"
        for i, node in enumerate(nodes)
    ]
    body = [
        "float *scale = nullptr, *history = nullptr, *maxima = nullptr;",
        "unsigned count = 0;",
        "switch (blockIdx.x) {",
        *(f"    {row}" for row in rows),
        "}",
        "float found = 0.0f;",
        f"for (unsigned item = threadIdx.x; item < count; item += {BLOCK}u)",
        "    found = maximum(found, maxima[item]);",
        f"found = across_row<Max, {BLOCK}>(found);",
        "if (threadIdx.x != 0) return;",
        f"const float first = found <= {literal(LARGEST[float32], float32)} ? found : 0.0f;",
        "float most = first;",
        f"for (int slot = {HISTORY - 1}; slot > 0; --slot) {{",
        "    history[slot] = history[slot - 1];",
        "    most = maximum(most, history[slot]);",
        "}",
        "history[0] = first;",
        "if (most > 0.0f) {",
        f"    scale[1] = minimum({limit} / most, {literal(MOST_SCALE, float32)});",
        "    scale[0] = 1.0f / scale[1];",
        "}",
    ]
    parameters = ", ".join(f"float *{name}" for name in names)
    text = f'extern "C" __global__ void {ENTRY}({parameters}) {{\n{indented(body, 1)}\n}}\n'
    arguments = tuple(value for node in nodes for value in node.inputs)
    return Launch(named("scale_updates", text), arguments, len(nodes), BLOCK)
