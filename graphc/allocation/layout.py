"""Layout: which values lie channels-last in memory.

Shapes and axes mean the same everywhere, (batch, channels, height, width); how a value lies is said
by its strides alone. For a GPU the feature maps of convolutional networks lie with the channels
innermost, and so do the weights of convolutions, their gradients and their moments.

What a value's layout follows from is the same for a node and its copies, and under every strategy:
its type, its op, and whether an operand lies so. So a copy lies as its original, and bits agree.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphc.codegen.strides import takes_strides
from graphc.ir.device import Device
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.types import (
    Layout,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    memory_order,
)

CONVOLUTIONS = frozenset({"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"})

ON_MAPS = CONVOLUTIONS | {
    "adaptive_average_pool2d", "adaptive_average_pool2d_gradient", "average_pool2d",
    "average_pool2d_gradient", "batch_norm", "max_pool2d", "max_pool2d_gradient",
    "max_pool2d_select", "upsample_bilinear2d", "upsample_bilinear2d_gradient",
    "upsample_nearest2d",
}  # fmt: skip
"""Ops whose outputs of rank 4 are maps or weights of convolutions, whatever they read."""

Strides = tuple[int, ...]


def layouts(graph: Graph, device: Device) -> dict[Value, Strides]:
    """The byte strides of the values that are not to lie row-major; views lie where they lie.

    None on the CPU, and none in a graph without convolutions.
    """
    if device.kind == "cpu" or not has_convolutions(graph):
        return {}
    chosen: dict[Value, Strides] = {
        s: channels_last_strides(s.type) for s in graph.states if _differs(s.type)
    }
    views: dict[Value, Strides] = {}

    def strides_of(value: Value) -> Strides:
        return chosen.get(value) or views.get(value) or contiguous_strides(value.type)

    for node in graph.nodes:
        shown = _shown(node, strides_of(node.inputs[0])) if node.op.views is not None else None
        if shown is not None:
            views.update(zip(node.outputs, shown, strict=True))
            continue
        follows = node.op.name in ON_MAPS or _any_channels_last(
            (value.type, strides_of(value)) for value in node.inputs
        )
        replaced = node.op.must_overwrite
        for index, value in enumerate(node.outputs):
            name = node.op.output_name(index)
            if name in replaced:
                state = node.named_inputs()[replaced[name]]
                assert isinstance(state, Value), "a state input is one value"
                if state in chosen:
                    chosen[value] = chosen[state]
            elif follows and _differs(value.type):
                strides = channels_last_strides(value.type)
                if takes_strides(node, name, value.type, strides, device):
                    chosen[value] = strides
    return chosen


def has_convolutions(graph: Graph) -> bool:
    """Whether maps lie channels-last in this graph."""
    return any(node.op.name in CONVOLUTIONS for node in graph.nodes)


def same_order(type: TensorType, one: Strides, other: Strides) -> bool:
    """Whether the axes of a tensor come in the same order in memory under both strides."""
    return memory_order(type.shape, one) == memory_order(type.shape, other)


def _differs(type: TensorType) -> bool:
    """Whether channels-last and row-major are two things for this type."""
    return type.rank == 4 and type.shape[1] > 1 and type.shape[2] * type.shape[3] > 1


def _any_channels_last(operands: Iterable[tuple[TensorType, Strides]]) -> bool:
    return any(
        _differs(type)
        and all(stride for stride, extent in zip(strides, type.shape, strict=True) if extent > 1)
        and same_order(type, strides, channels_last_strides(type))
        for type, strides in operands
    )


def _shown(node: Node, strides: Strides) -> tuple[Strides, ...] | None:
    """The strides of views; None where a copy is made."""
    layouts = node.op.view(node, Layout(0, strides))
    return None if layouts is None else tuple(layout.strides for layout in layouts)
