"""Choice of memory layouts: strides of the values that are not row-major.

Shapes and axes always mean (batch, channels, height, width); only strides express a layout. For
GPUs and native kernels, feature maps of convolutional networks are channels-last. For GPUs, so are
the weights of convolutions, their gradients and their moments. For GPUs, the rows of 16-bit
products are padded so that tensor cores can read them: rows of 50,257 logits have a stride of
50,264 elements.

A layout depends only on the type, the op and the layouts of the operands. These are the same for a
node and its copies, and under every strategy. So a copy has the layout of its original, and the
results are bitwise equal. No planner chooses strides, so `plans.check_figures` compares those of a
plan with the strides here.

Copies between device and host keep strides, so the layouts of all other values do not depend on
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from graphc.errors import GraphError
from graphc.ir.copies import SharedByCopies
from graphc.ir.graph import Graph, Node, Phase, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import (
    Layout,
    TensorType,
    channels_last_strides,
    contiguous_strides,
    outer_axes,
    padded_strides,
    same_order,
)
from graphc.ops.choice import Cast
from graphc.ops.elementwise import Elementwise
from graphc.ops.tiled_attention import TiledAttention
from graphc.target import Target

Strides = tuple[int, ...]


KnownLayouts = SharedByCopies[tuple[Strides | None, ...]]
"""A cache: for a node, the strides of its outputs by the strides of its operands. None means
row-major."""


def layouts(
    graph: Graph, target: Target, known: KnownLayouts | None = None
) -> dict[Value, Strides]:
    """Return the byte strides of the values that are not row-major, except views.

    The result is empty if the target has no preference and nothing is copied to the host. `known`
    is a cache that this function fills. It may be reused for graphs with copies of these nodes and
    the same target.

    Raises `GraphError` if a value with overlapping elements is copied to the host.
    """
    preferences: list[_Preference] = []
    chosen = _Chosen(target, SharedByCopies() if known is None else known)
    if target.prefers_channels_last and has_convolutions(graph):
        preferences.append(_channels_last)
        filters = graph.states if target.prefers_filters_last else ()
        chosen.own |= {s: channels_last_strides(s.type) for s in filters if _differs(s.type)}
    if target.prefers_heads_inside:
        preferences.append(_heads_inside)
    if target.pads_rows:
        preferences.append(_padded)
    if preferences or any(node.op.copies_to for node in graph.nodes):
        for node in graph.nodes:
            if node.host_copy is not None:
                chosen.copied(node)
            elif not chosen.views(node):
                chosen.outputs(node, tuple(preferences))
    return chosen.own


class _Chosen:
    """The strides chosen so far, extended in the order of the nodes."""

    def __init__(self, target: Target, known: KnownLayouts) -> None:
        self.target = target
        self.known = known
        self.own: dict[Value, Strides] = {}
        self.viewed: dict[Value, Strides] = {}

    def strides_of(self, value: Value) -> Strides:
        """Return the byte strides of a value, chosen or row-major."""
        found = self.own.get(value) or self.viewed.get(value)
        return found or contiguous_strides(value.type)

    def views(self, node: Node) -> bool:
        """Record the strides of outputs that are views of an operand.

        Return False for nodes whose outputs are not views.
        """
        viewed = node.viewed
        inside = None if viewed is None else node.op.view(node, Layout(0, self.strides_of(viewed)))
        if inside is None:
            return False
        self.viewed |= {v: layout.strides for v, layout in zip(node.outputs, inside, strict=True)}
        return True

    def copied(self, node: Node) -> None:
        """Give the output of a copy between device and host, or of its arrival, the strides of the
        operand."""
        x, y = node.inputs[0], node.output
        strides = self.strides_of(x)
        if any(n > 1 and not stride for n, stride in zip(x.shape, strides, strict=True)):
            raise GraphError(
                f"{node.label} cannot copy {x!r}, whose elements share bytes; copy the value that "
                "it views"
            )
        if outer_axes(x.type, strides):
            self.own[y] = strides

    def outputs(self, node: Node, preferences: tuple[_Preference, ...]) -> None:
        """Choose the strides of the outputs of a node."""
        operands = tuple(self.own.get(v) or self.viewed.get(v) for v in node.inputs)
        key = preferences, _phase(node), operands
        found = self.known.get(node, key, partial(self._preferred, node, preferences))
        replaced = node.replaced
        for value, strides in zip(node.outputs, found, strict=True):
            own = self.own.get(replaced[value]) if value in replaced else strides
            if own is not None:
                self.own[value] = own

    def _preferred(
        self, node: Node, preferences: tuple[_Preference, ...]
    ) -> tuple[Strides | None, ...]:
        """Return, for each output, the first preferred strides that the target's kernel accepts."""
        operands = [(value.type, self.strides_of(value)) for value in node.inputs]

        def first(value: Value) -> Strides | None:
            name = node.op.output_name(value.index)
            wanted = (preference(node, value.type, operands) for preference in preferences)
            takes = partial(self.target.takes_strides, node, name, value.type)
            return next((strides for strides in wanted if strides and takes(strides)), None)

        return tuple(None if value in node.replaced else first(value) for value in node.outputs)


def _phase(node: Node) -> Phase:
    return node.phase if node.copy_of is None else node.copy_of.phase


_Operands = Sequence[tuple[TensorType, Strides]]
_Preference = Callable[[Node, TensorType, _Operands], Strides | None]
"""A function from a node, an output type and the operands to preferred strides.

None means row-major.
"""


def _channels_last(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """Return channels-last strides for feature maps."""
    if not _differs(type) or not (node.op.on_maps or _any_channels_last(operands)):
        return None
    return channels_last_strides(type)


def _heads_inside(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """Return the strides of an output of fused attention, with the axis order of its operands.

    If the operands are parts of one projection, the heads of a position are adjacent in memory.
    The next product then reads the output without a copy.
    """
    if not isinstance(node.op, TiledAttention) or type.rank != 4:
        return None
    _, heads, rows, width = type.shape
    for other, strides in operands:
        if other.shape[:3] == type.shape[:3] and other.rank == 4 and strides[2] > strides[1]:
            step = type.dtype.itemsize * width
            return (step * heads * rows, step, step * heads, type.dtype.itemsize)
    return None


def _padded(node: Node, type: TensorType, operands: _Operands) -> Strides | None:
    """Return padded strides or None.

    Rows are padded in

    - outputs with the shape of a padded operand,
    - 16-bit outputs of 16-bit products, elementwise ops and casts,
    - outputs of 16-bit products in the forward pass, such as logits.

    A float32 weight gradient of 16-bit products has the layout of the weight.
    """
    strides = padded_strides(type)
    if strides == contiguous_strides(type):
        return None
    if any(other.shape == type.shape and _is_padded(other, found) for other, found in operands):
        return strides
    multiplies = node.op.multiplies and is_16_bit(node.inputs[0])
    if type.dtype.itemsize == 2:
        return strides if multiplies or isinstance(node.op, Elementwise | Cast) else None
    return strides if multiplies and _phase(node) == "forward" else None


def _is_padded(type: TensorType, strides: Strides) -> bool:
    return strides == padded_strides(type) != contiguous_strides(type)


def has_convolutions(graph: Graph) -> bool:
    """Return True if the graph has convolutions, so that feature maps are channels-last."""
    return any(node.op.convolves for node in graph.nodes)


def _differs(type: TensorType) -> bool:
    """Return True if channels-last and row-major strides differ for this type."""
    return type.rank == 4 and type.shape[1] > 1 and type.shape[2] * type.shape[3] > 1


def _any_channels_last(operands: Iterable[tuple[TensorType, Strides]]) -> bool:
    """Return True if an operand is channels-last without broadcast (zero) strides."""
    return any(
        _differs(type)
        and all(stride for stride, extent in zip(strides, type.shape, strict=True) if extent > 1)
        and same_order(type, strides, channels_last_strides(type))
        for type, strides in operands
    )
