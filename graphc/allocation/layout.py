"""Layout: which values lie channels-last in memory.

Shapes and axes mean the same everywhere, (batch, channels, height, width); how a value lies is said
by its strides alone. For a GPU and for native kernels the feature maps of convolutional networks
lie with the channels innermost, and for a GPU so do the weights of convolutions, their gradients
and their moments.

What a value's layout follows from is the same for a node and its copies, and under every strategy:
its type, its op, and whether an operand lies so. So a copy lies as its original, and bits agree.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphc.ir.graph import Graph, Value
from graphc.ir.types import (
    Layout,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    same_order,
)
from graphc.target import Target

Strides = tuple[int, ...]


def layouts(graph: Graph, target: Target) -> dict[Value, Strides]:
    """The byte strides of the values that are not to lie row-major; views lie where they lie.

    There are none where the target has no preference, and in a graph without convolutions.
    """
    if not target.prefers_channels_last or not has_convolutions(graph):
        return {}
    filters = graph.states if target.prefers_filters_last else ()
    chosen: dict[Value, Strides] = {
        s: channels_last_strides(s.type) for s in filters if _differs(s.type)
    }
    views: dict[Value, Strides] = {}

    def strides_of(value: Value) -> Strides:
        return chosen.get(value) or views.get(value) or contiguous_strides(value.type)

    for node in graph.nodes:
        viewed = node.viewed
        inside = None if viewed is None else node.op.view(node, Layout(0, strides_of(viewed)))
        if inside is not None:
            views |= {v: layout.strides for v, layout in zip(node.outputs, inside, strict=True)}
            continue
        follows = node.op.on_maps or _any_channels_last(
            (value.type, strides_of(value)) for value in node.inputs
        )
        replaced = node.replaced
        for value in node.outputs:
            if value in replaced:
                if replaced[value] in chosen:
                    chosen[value] = chosen[replaced[value]]
            elif follows and _differs(value.type):
                name, strides = node.op.output_name(value.index), channels_last_strides(value.type)
                if target.takes_strides(node, name, value.type, strides):
                    chosen[value] = strides
    return chosen


def has_convolutions(graph: Graph) -> bool:
    """Whether maps lie channels-last in this graph."""
    return any(node.op.convolves for node in graph.nodes)


def _differs(type: TensorType) -> bool:
    """Whether channels-last and row-major are two things for this type."""
    return type.rank == 4 and type.shape[1] > 1 and type.shape[2] * type.shape[3] > 1


def _any_channels_last(operands: Iterable[tuple[TensorType, Strides]]) -> bool:
    """Whether an operand has its channels innermost in memory, and each element only once."""
    return any(
        _differs(type)
        and all(stride for stride, extent in zip(strides, type.shape, strict=True) if extent > 1)
        and same_order(type, strides, channels_last_strides(type))
        for type, strides in operands
    )
