"""Concatenations without copies: a greedy choice of parts that are computed in place.

A concatenation y of x1, ..., xk copies bytes that could have been written into y directly. If a
part xi is inside y, its own storage is saved. But the storage of y is then live from the first
part on, and until the last use of a part. This module chooses the parts to place inside.

A part can be placed under these conditions (`_Choosing.move`):

- It fills its storage: as the root of the storage, or as a view of the whole root, with reshapes
  and transposes, whose layout inside y is one of strides for the axes of the root (`through_view`).
- The root is no state and no input, and is in no other concatenation.
- y reads the part once.
- The kernels that write it, and those that read it or a view of it, accept its strides inside y.
- Its axes have the same order in memory inside y.

The choice is greedy. Concatenations are visited from the last to the first. So a concatenation that
is itself a part is placed before its own parts, which then go into the outermost whole, and a whole
never becomes a part. At each concatenation, all possible parts are tried together, and if that does
not pay, each alone. Parts are placed if that lowers the peak over the steps from the first to the
last of the parts and the whole; or, for an equal peak, the sum over these steps. A bucket of
gradients for a collective is live for long and would seldom qualify. Its parts are placed if the
peak of the whole graph does not grow, since each avoided copy saves time.

Invariant: `profile[t]` has the bytes live at step t with the parts chosen so far. Each choice
lowers (peak, sum) on the steps that it touches, or stays within the peak of all steps. It changes
no other step, so the peak of the whole graph never grows. This model ignores overwriting, and a
part cannot overwrite an operand. Therefore `Allocation.merged` compares the storages with and
without parts.

Cost: O(P (N + R)) for P operands of concatenations, N steps, and R uses of an operand's storage.
The N are additions in NumPy. The paper has no such rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.types import Layout, TensorType, contiguous_strides, memory_order, same_order
from graphc.memory.storages import Storages
from graphc.target import Target


@dataclass(frozen=True, slots=True)
class Part:
    """The location of a value in the storage of `whole`, a concatenation that is not itself a
    part."""

    whole: Value
    reader: Value
    """The concatenation that reads the value; `whole`, or a part of it."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class Parts:
    """The values placed inside concatenations.

    `places` maps each of these values to its part. `lifetimes` has the steps `[first, last)` of
    each whole.
    """

    places: dict[Value, Part]
    lifetimes: dict[Value, tuple[int, int]]


def choose_parts(
    graph: Graph, separate: Storages, target: Target, fills_buckets: bool = True
) -> Parts:
    """Choose the values that are computed inside a concatenation.

    With `fills_buckets`, buckets are filled without copies even if that extends their live range.
    `separate` has the storages of the graph with views merged and without overwriting.
    """
    choosing = _Choosing(graph, separate, target, fills_buckets)
    for node in reversed(graph.nodes):
        if node.op.gathers is not None:
            choosing.visit(node)
    wholes = {part.whole for part in choosing.places.values()}
    lifetimes = {whole: choosing.block_of(whole).lifetime for whole in wholes}
    return Parts(choosing.places, lifetimes)


def is_bucket(graph: Graph, node: Node) -> bool:
    """Return True for a concatenation whose only consumers are collectives."""
    uses = graph.uses[node.output] if node.op.gathers is not None else []
    return bool(uses) and all(graph.nodes[step].op.sends for step in uses)


def _differ(type: TensorType, strides: Sequence[int], others: Sequence[int]) -> bool:
    """Return True if two strides place an element of a type at different bytes."""
    pairs = zip(type.shape, strides, others, strict=True)
    return any(n > 1 and stride != other for n, stride, other in pairs)


@dataclass(slots=True)
class _Block:
    """A storage during the choice: its bytes and the steps on which it is live, which parts may
    extend.

    `residents` has the root of the storage, then its views.
    """

    bytes: int
    first: int
    last: int
    residents: list[Value]

    @property
    def lifetime(self) -> tuple[int, int]:
        return self.first, self.last


@dataclass(frozen=True, slots=True)
class _Move:
    """The index of a block that can be placed inside another, and the layout of its root there."""

    block: int
    layout: Layout


class _Choosing:
    """State of the greedy choice: the parts so far, and the bytes live at each step with these
    parts."""

    def __init__(
        self, graph: Graph, separate: Storages, target: Target, fills_buckets: bool
    ) -> None:
        self.graph, self.fills_buckets = graph, fills_buckets
        self.separate = separate
        self.target = target
        self.places: dict[Value, Part] = {}
        self.blocks = [_Block(s.bytes, s.first, s.last, []) for s in separate.storages]
        for value, placement in separate.placements.items():
            self.blocks[placement.buffer].residents.append(value)
        change = np.zeros(len(graph.nodes) + 2, np.int64)
        for block in self.blocks:
            change[block.first] += block.bytes
            change[block.last] -= block.bytes
        self.profile = np.cumsum(change)
        """Bytes live at each step, with the parts chosen so far."""

    def block_of(self, value: Value) -> _Block:
        """Return the block of the value's storage in `separate`."""
        return self.blocks[self.separate.placements[value].buffer]

    def visit(self, node: Node) -> None:
        """Place all possible parts of a concatenation if that lowers the peak, else each part that
        alone does."""
        # If the concatenation is a part itself, its parts go into the same `whole`.
        y = node.output
        outside = self.places.get(y)
        whole_layout = outside.layout if outside else self.layout_of(y)
        whole = outside.whole if outside else y
        moves: dict[int, _Move] = {}
        for value, layout in zip(node.inputs, node.op.gather(node, whole_layout), strict=True):
            move = self.move(node, value, layout)
            if move is not None:
                moves.setdefault(move.block, move)  # two views of one block: the first counts
        remaining = list(moves.values())
        for group in (remaining, *([move] for move in remaining)):
            free = [m for m in group if self.blocks[m.block].residents[0] not in self.places]
            if free and self.pays(node, self.block_of(whole), [self.blocks[m.block] for m in free]):
                for move in free:
                    self.place(move, Part(whole, y, move.layout))

    def move(self, node: Node, value: Value, layout: Layout) -> _Move | None:
        """Return the move of the storage of `value` into the output of `node`, or None if it is
        impossible."""
        placement = self.separate.placements[value]
        block = self.blocks[placement.buffer]
        owner = block.residents[0]
        if (
            isinstance(owner, State | Input)
            or owner in self.places
            or owner.producer.host_copy is not None
            or block is self.block_of(node.output)
            or value.type.bytes != block.bytes
            or node.inputs.count(value) != 1
            or not same_order(value.type, self.layout_of(value).strides, layout.strides)
        ):
            return None
        if value is not owner:
            found = through_view(
                owner.type, self.layout_of(owner), value.type, self.layout_of(value), layout
            )
            if found is None:
                return None
            layout = found
        fits = self.may_write(owner, layout) and self.may_read_all(block.residents, layout)
        return _Move(placement.buffer, layout) if fits else None

    def layout_of(self, value: Value) -> Layout:
        """Return the layout of a value in `separate`."""
        layout = self.separate.placements[value].layout
        return layout or Layout(0, contiguous_strides(value.type))

    def may_write(self, value: Value, layout: Layout) -> bool:
        """Return True if the producer's kernel can write a value with this layout."""
        name = value.producer.op.output_name(value.index)
        return self.takes(value.producer, name, value, layout)

    def takes(self, node: Node, name: str, value: Value, layout: Layout) -> bool:
        """Return True if the kernel of a node accepts a layout for its operand or output `name`,
        and the layout has few contiguous pieces."""
        return self.target.is_in_few_pieces(value.type, layout.strides) and self.target.takes_part(
            node, name, value.type, layout
        )

    def may_read_all(self, residents: Iterable[Value], layout: Layout) -> bool:
        """Return True if all consumers of a value and of its views accept `layout` for the
        value."""
        layouts: dict[Value, Layout] = {}
        for value in residents:
            source = self.separate.placements[value].over
            if source is None:
                layouts[value] = layout
            else:
                inside = value.producer.op.view(value.producer, layouts[source])
                if inside is None:
                    return False
                layouts[value] = inside[value.index]
        return all(
            self.may_read(self.graph.nodes[step], value, place)
            for value, place in layouts.items()
            for step in self.graph.uses[value]
        )

    def may_read(self, node: Node, value: Value, layout: Layout) -> bool:
        """Return True if a node accepts a layout of a value that it reads; views accept any layout,
        as their consumers are checked."""
        if self.separate.placements[node.outputs[0]].how == "view":
            return True
        if node.op.copies_to and _differ(value.type, layout.strides, self.layout_of(value).strides):
            return False  # copies between device and host keep strides
        names = {node.op.input_name(i) for i, v in enumerate(node.inputs) if v is value}
        return all(self.takes(node, name, value, layout) for name in names)

    def pays(self, node: Node, outer: _Block, inner: list[_Block]) -> bool:
        """Return True if placing `inner` in `outer` lowers (peak, sum) of live bytes on the steps
        concerned.

        For a bucket of gradients, return True if the peak over all steps does not grow.
        """
        first = min(block.first for block in (outer, *inner))
        last = max(block.last for block in (outer, *inner))
        before = self.profile[first:last]
        after = before + outer.bytes
        for block in (outer, *inner):
            after[block.first - first : block.last - first] -= block.bytes
        if self.fills_buckets and is_bucket(self.graph, node):
            return int(after.max()) <= int(self.profile.max())
        return (int(after.max()), int(after.sum())) < (int(before.max()), int(before.sum()))

    def place(self, move: _Move, part: Part) -> None:
        """Place a block inside its whole; the live range of the whole then covers both."""
        outer, inner = self.block_of(part.whole), self.blocks[move.block]
        self.places[inner.residents[0]] = part
        for block in (outer, inner):
            self.profile[block.first : block.last] -= block.bytes
        outer.first, outer.last = min(outer.first, inner.first), max(outer.last, inner.last)
        self.profile[outer.first : outer.last] += outer.bytes


def through_view(
    root: TensorType, place: Layout, view: TensorType, seen: Layout, inside: Layout
) -> Layout | None:
    """Return the layout of a root that gives a view of all its elements the layout `inside`.

    `place` and `seen` are the present layouts of the root and of the view, without gaps. Returns
    None if no strides of the root's axes give that layout, as for an axis of the root that the view
    divides, and whose parts are not adjacent inside.
    """
    size = view.dtype.itemsize
    axes = [
        axis for axis in reversed(memory_order(view.shape, seen.strides)) if view.shape[axis] > 1
    ]
    step = size
    for axis in axes:  # the view's axes, the innermost first, must have no gaps
        if seen.strides[axis] != step:
            return None
        step *= view.shape[axis]
    if place.offset or seen.offset or step != root.bytes:
        return None
    strides = []
    for extent, stride in zip(root.shape, place.strides, strict=True):
        found = _stride_inside(extent, stride, axes, view, seen, inside) if extent > 1 else step
        if found is None:
            return None
        strides.append(found)
    return Layout(inside.offset, tuple(strides))


def _stride_inside(
    extent: int, stride: int, axes: list[int], view: TensorType, seen: Layout, inside: Layout
) -> int | None:
    """Return the stride that an axis of a root gets if a view of it moves from `seen` to `inside`.

    `axes` are the view's axes, the innermost first. Returns None if the axis gets no single stride.
    """
    found: int | None = None
    for axis in axes:
        step, most = seen.strides[axis], seen.strides[axis] * view.shape[axis]
        if most <= stride:  # the axis of the root moves over all of this axis
            continue
        if step >= stride * extent:
            break
        factor, remainder = divmod(stride, step)
        if found is None:
            if remainder:
                return None
            found = factor * inside.strides[axis]
        elif step % stride or inside.strides[axis] != found * (step // stride):
            return None  # a further axis of the view must continue the first
    return found
