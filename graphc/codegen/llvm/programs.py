"""Programs of a node as native calls."""

from __future__ import annotations

from graphc.codegen.elementwise.program import Each
from graphc.codegen.lines.program import Along
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.kernel import NativeCall
from graphc.codegen.llvm.lines import lines_calls
from graphc.codegen.node_calls import NodeCalls
from graphc.ir.types import TensorType


def native_calls(
    found: NodeCalls,
) -> tuple[tuple[NativeCall, ...], tuple[TensorType, ...]] | None:
    """What runs programs on a CPU, and all scratch; None where a part is left to NumPy."""
    calls: list[NativeCall] = []
    scratch = list(found.scratch)
    for program in found.calls:
        match program:
            case Each():
                one = each_call(program)
                if one is None:
                    return None
                calls.append(one)
            case Along():
                written = lines_calls(program, len(scratch))
                if written is None:
                    return None
                calls += written[0]
                scratch += written[1]
            case _:
                return None
    return tuple(calls), tuple(scratch)
