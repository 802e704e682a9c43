"""Layout: which values do not lie row-major in memory.

Shapes and axes mean the same everywhere, (batch, channels, height, width); how a value lies is said
by its strides alone. For a GPU and for native kernels the feature maps of convolutional networks
lie with the channels innermost, and for a GPU so do the weights of convolutions, their gradients
and their moments. For a GPU the rows of 16-bit products are padded, so that tensor cores can read
them: logits of 50,257 words lie 50,264 apart.

What a value's layout follows from is the same for a node and its copies, and under every strategy:
its type, its op, and how the operands lie. So a copy lies as its original, and bits agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphc.ir.graph import Graph, Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import (
    Layout,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    padded_strides,
    same_order,
)
from graphc.ops.choice import Cast
from graphc.ops.elementwise import Elementwise
from graphc.ops.fused_attention import TiledAttention
from graphc.target import Target

Strides = tuple[int, ...]


def layouts(graph: Graph, target: Target) -> dict[Value, Strides]:
    """The byte strides of the values that are not to lie row-major; views lie where they lie.

    There are none where the target has no preference.
    """
    preferences: list[_Preference] = []
    chosen = _Chosen(target)
    if target.prefers_channels_last and has_convolutions(graph):
        preferences.append(_channels_last)
        filters = graph.states if target.prefers_filters_last else ()
        chosen.own |= {s: channels_last_strides(s.type) for s in filters if _differs(s.type)}
    if target.prefers_heads_inside:
        preferences.append(_heads_inside)
    if target.pads_rows:
        preferences.append(_padded)
    if preferences:
        for node in graph.nodes:
            if not chosen.views(node):
                chosen.outputs(node, preferences)
    return chosen.own


class _Chosen:
    """The strides of values so far, in the order in which nodes run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.own: dict[Value, Strides] = {}
        self.viewed: dict[Value, Strides] = {}

    def strides_of(self, value: Value) -> Strides:
        """Where a value lies."""
        found = self.own.get(value) or self.viewed.get(value)
        return found or contiguous_strides(value.type)

    def views(self, node: Node) -> bool:
        """Whether the outputs lie in what the node views, which says how they do."""
        viewed = node.viewed
        inside = None if viewed is None else node.op.view(node, Layout(0, self.strides_of(viewed)))
        if inside is None:
            return False
        self.viewed |= {v: layout.strides for v, layout in zip(node.outputs, inside, strict=True)}
        return True

    def outputs(self, node: Node, preferences: Sequence[_Preference]) -> None:
        """Choose strides of what a node computes."""
        operands = [(value.type, self.strides_of(value)) for value in node.inputs]
        replaced = node.replaced
        for value in node.outputs:
            if value in replaced:
                if replaced[value] in self.own:
                    self.own[value] = self.own[replaced[value]]
                continue
            name = node.op.output_name(value.index)
            wanted = (preference(node, value.type, operands) for preference in preferences)
            for strides in filter(None, wanted):
                if self.target.takes_strides(node, name, value.type, strides):
                    self.own[value] = strides
                    break


_Operands = Sequence[tuple[TensorType, Strides]]
_Preference = Callable[[Node, TensorType, _Operands], Strides | None]
"""The strides that an output of that type had better have, by the node, and the types and strides
of its operands; None where it may as well lie row-major."""


def _channels_last(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """Maps lie with their channels innermost."""
    if not _differs(type) or not (node.op.on_maps or _any_channels_last(operands)):
        return None
    return channels_last_strides(type)


def _heads_inside(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """What fused attention writes lies as its operands do: where those are parts of one projection,
    with the heads of a position side by side, the next product reads it as it lies."""
    if not isinstance(node.op, TiledAttention) or type.rank != 4:
        return None
    _, heads, rows, width = type.shape
    for other, strides in operands:
        if other.shape[:3] == type.shape[:3] and other.rank == 4 and strides[2] > strides[1]:
            step = type.dtype.itemsize * width
            return (step * heads * rows, step, step * heads, type.dtype.itemsize)
    return None


def _padded(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """What products and elementwise ops write of 16-bit numbers, what products of these write going
    forward, such as logits, and what has the shape of such an operand.

    A float32 gradient that products of 16-bit numbers give a weight lies as the weight does.
    """
    strides = padded_strides(type)
    if strides == contiguous_strides(type):
        return None
    if any(other.shape == type.shape and _is_padded(other, found) for other, found in operands):
        return strides
    multiplies = node.op.multiplies and is_16_bit(node.inputs[0])
    if type.dtype.itemsize == 2:
        return strides if multiplies or isinstance(node.op, Elementwise | Cast) else None
    phase = node.phase if node.copy_of is None else node.copy_of.phase
    return strides if multiplies and phase == "forward" else None


def _is_padded(type: TensorType, strides: Strides) -> bool:
    return strides == padded_strides(type) != contiguous_strides(type)


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
