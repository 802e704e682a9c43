"""Layout: which values do not lie row-major in memory.

Shapes and axes mean the same everywhere, (batch, channels, height, width); how a value lies is said
by its strides alone. For a GPU and for native kernels the feature maps of convolutional networks
lie with the channels innermost, and for a GPU so do the weights of convolutions, their gradients
and their moments. For a GPU the rows of 16-bit products are padded, so that tensor cores can read
them: logits of 50,257 words lie 50,264 apart.

What a value's layout follows from is the same for a node and its copies, and under every strategy:
its type, its op, and whether an operand lies so. So a copy lies as its original, and bits agree.
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
from graphc.target import Target

Strides = tuple[int, ...]


def layouts(graph: Graph, target: Target) -> dict[Value, Strides]:
    """The byte strides of the values that are not to lie row-major; views lie where they lie.

    There are none where the target has no preference.
    """
    preferences: list[_Preference] = []
    if target.prefers_channels_last and has_convolutions(graph):
        preferences.append(_channels_last)
    if target.pads_rows:
        preferences.append(_padded)
    if not preferences:
        return {}
    is_last = _channels_last in preferences and target.prefers_filters_last
    chosen = _Chosen(graph, target)
    if is_last:
        chosen.own |= {s: channels_last_strides(s.type) for s in graph.states if _differs(s.type)}
    for node in graph.nodes:
        if not chosen.views(node):
            chosen.outputs(node, preferences)
    return chosen.own


class _Chosen:
    """The strides of values so far, in the order in which nodes run."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
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
            for preference in preferences:
                strides = preference(self.graph, value, operands)
                if strides is not None and self.is_taken(node, value, strides, preference):
                    self.own[value] = strides
                    break

    def is_taken(self, node: Node, value: Value, strides: Strides, preference: _Preference) -> bool:
        """Whether the node's kernel writes so, and, of padded rows, whether all readers read so."""
        name = node.op.output_name(value.index)
        if not self.target.takes_strides(node, name, value.type, strides):
            return False
        return preference is not _padded or all(
            self.target.takes_strides(reader, reader.op.input_name(index), value.type, strides)
            for reader in map(self.graph.nodes.__getitem__, self.graph.uses[value])
            for index, operand in enumerate(reader.inputs)
            if operand is value and reader.viewed is not value
        )


_Operands = Sequence[tuple[TensorType, Strides]]
_Preference = Callable[[Graph, Value, _Operands], Strides | None]
"""The strides that an output of a node had better have, by the types and strides of the node's
operands; None where it may as well lie row-major."""


def _channels_last(graph: Graph, value: Value, operands: _Operands) -> Strides | None:
    """Maps lie with their channels innermost."""
    node, type = value.node, value.type
    assert node is not None
    if not _differs(type) or not (node.op.on_maps or _any_channels_last(operands)):
        return None
    return channels_last_strides(type)


def _padded(graph: Graph, value: Value, operands: _Operands) -> Strides | None:
    """Rows of what 16-bit products read and write begin at multiples of 16 bytes, and so do those
    of what is computed from these row by row."""
    node, type = value.node, value.type
    assert node is not None
    strides = padded_strides(type)
    if strides == contiguous_strides(type):
        return None
    readers = (graph.nodes[step] for step in graph.uses[value])
    follows = any(
        other.shape == type.shape and found == padded_strides(other) != contiguous_strides(other)
        for other, found in operands
    )
    is_multiplied = _multiplies_16_bit(node) or any(map(_multiplies_16_bit, readers))
    return strides if is_multiplied or follows else None


def _multiplies_16_bit(node: Node) -> bool:
    return node.op.multiplies and is_16_bit(node.inputs[0])


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
