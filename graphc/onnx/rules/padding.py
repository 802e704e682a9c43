"""Import of padding."""

from __future__ import annotations

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.ir.types import bool_, normalize_axis
from graphc.onnx.calls import OnnxCall, rule

MODES = ("constant", "edge", "reflect", "wrap")


@rule("Pad")
def pad(call: OnnxCall) -> Value:
    """Import Pad; negative widths crop."""
    x = call.value(0)
    rank = x.type.rank
    given = (
        call.integers(1) if call.has(1) else (call.attribute("pads") or call.required("paddings"))
    )
    axes = call.integers(3, range(rank))
    if len(given) != 2 * len(axes):
        raise UnsupportedError(f"pads must have {2 * len(axes)} numbers, got {given}")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        widths[normalize_axis(axis, rank, "Pad")] = given[i], given[i + len(axes)]
    mode = call.choice("mode", "constant", MODES)
    value = call.number(2, 0.0) if call.has(2) else call.attribute("value", 0.0)
    if x.type.dtype == bool_:
        raise UnsupportedError("padding of bool is not supported")
    return graphc.pad(x, widths, mode, value)
