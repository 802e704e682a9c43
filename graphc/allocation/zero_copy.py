"""Concatenations without copies: parts are computed straight into their place.

Problem: a concatenation y of x1, ..., xk copies bytes that could have been written into y at once.
If a part xi lies inside y, its own storage is saved, but the storage of y is then alive from the
first part on, and until the last reader of a part. Which parts should lie inside?

A part can be placed where it fills its storage, as the value that this was made for or as a
row-major view of all of that; where the storage is no state's or input's and lies in no other
concatenation; where y reads it once; and where the kernel that writes it, and all that read it or a
view of it, take the strides that it has inside y, with its axes in the same order in memory
(`_Choosing.move`).

The choice is greedy. Concatenations are visited from the last to the first: a concatenation that is
itself a part has its place before its own parts are looked at, so these lie in the outermost whole,
and a whole never becomes a part. At each one, all parts that can be placed are tried together, and
if that does not pay, each alone. Parts are placed where that lowers the most bytes live at one of
the steps that they or the whole live on; or, with the same most, the sum over these steps. A bucket
of gradients, which ranks exchange, is alive for long and would seldom gain by that: its parts are
placed wherever the peak of the whole graph stays, since what is not copied is time saved.

Invariant: `profile[t]` has the bytes live at step t with the parts chosen so far in their wholes.
Each choice lowers (most, sum) on the steps it touches, or keeps to the peak of all steps, and
changes no other, so the peak of the whole graph never grows. Nothing is overwritten in this model,
though, and a part cannot overwrite an operand; so `Allocation.merged` compares the storages with
parts to those without.

Cost: O(P (N + R)) for P operands of concatenations, N steps, and R readers of an operand's storage;
the N are additions in NumPy. The paper has no such rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from graphc.allocation.storages import Storages
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.types import Layout, contiguous_strides, outer_axes, same_order
from graphc.target import Target


@dataclass(frozen=True, slots=True)
class Part:
    """Where a value lies: in the storage of the concatenation `whole`, which lies in no other."""

    whole: Value
    reader: Value
    """The concatenation that reads the value; `whole`, or a part of it."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class Parts:
    """The values that lie in a slice of a concatenation, and the steps [first, last) of each whole.

    `places` holds the parts, `lifetimes` the concatenations that hold them.
    """

    places: dict[Value, Part]
    lifetimes: dict[Value, tuple[int, int]]


def choose_parts(
    graph: Graph, separate: Storages, target: Target, fills_buckets: bool = True
) -> Parts:
    """Choose the values that are computed inside a concatenation.

    `fills_buckets` says whether buckets are filled without copies even where that keeps them alive
    for longer. `separate` holds the storages of the graph with views merged and nothing
    overwritten.
    """
    choosing = _Choosing(graph, separate, target, fills_buckets)
    for node in reversed(graph.nodes):
        if node.op.gathers is not None:
            choosing.visit(node)
    wholes = {part.whole for part in choosing.places.values()}
    lifetimes = {whole: choosing.block_of(whole).lifetime for whole in wholes}
    return Parts(choosing.places, lifetimes)


def is_bucket(graph: Graph, node: Node) -> bool:
    """Whether a concatenation is read by exchanges between ranks alone."""
    uses = graph.uses[node.output] if node.op.gathers is not None else []
    return bool(uses) and all(graph.nodes[step].op.sends for step in uses)


@dataclass(slots=True)
class _Block:
    """A storage with its bytes and steps, as far as parts have extended these.

    `residents` are the value that it was made for, and the views of that.
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
    """A block that can lie inside another, and the layout of its first resident there."""

    block: int
    layout: Layout


class _Choosing:
    """The greedy choice: the parts so far, and the bytes live at each step with them in place."""

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
        """Bytes live at each step."""

    def block_of(self, value: Value) -> _Block:
        """The block of the value's storage before anything is a part."""
        return self.blocks[self.separate.placements[value].buffer]

    def visit(self, node: Node) -> None:
        """Place all parts of a concatenation that can be placed, or each that pays on its own."""
        # A concatenation that is a part itself lies in `whole`, and so will its parts.
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
        """How a part's storage would lie inside that of `node`'s output, if it can."""
        placement = self.separate.placements[value]
        block = self.blocks[placement.buffer]
        owner = block.residents[0]
        if (
            isinstance(owner, State | Input)
            or owner in self.places
            or block is self.block_of(node.output)
            or value.type.bytes != block.bytes
            or node.inputs.count(value) != 1
            or not same_order(value.type, self.layout_of(value).strides, layout.strides)
        ):
            return None
        if value is not owner:  # a view of all of it, row-major as it is
            places = placement.layout, self.separate.placements[owner].layout
            if places != (None, None) or outer_axes(value.type, layout.strides):
                return None
            layout = Layout(layout.offset, contiguous_strides(owner.type))
        fits = self.may_write(owner, layout) and self.may_read_all(block.residents, layout)
        return _Move(placement.buffer, layout) if fits else None

    def layout_of(self, value: Value) -> Layout:
        """Where a value lies in its storage before anything is a part."""
        layout = self.separate.placements[value].layout
        return layout or Layout(0, contiguous_strides(value.type))

    def may_write(self, value: Value, layout: Layout) -> bool:
        """Whether the kernel that computes a value can write it where it lies so."""
        name = value.producer.op.output_name(value.index)
        return self.takes(value.producer, name, value, layout)

    def takes(self, node: Node, name: str, value: Value, layout: Layout) -> bool:
        """Whether the kernel of a node takes a value that lies so, in not too many pieces."""
        return self.target.is_in_few_pieces(value.type, layout.strides) and self.target.takes_part(
            node, name, value.type, layout
        )

    def may_read_all(self, residents: Iterable[Value], layout: Layout) -> bool:
        """Whether views of a value, and all readers, are content with another layout of it."""
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
        """Whether a node can read a value that lies so; a view can, and its readers are asked."""
        if self.separate.placements[node.outputs[0]].how == "view":
            return True
        names = {node.op.input_name(i) for i, v in enumerate(node.inputs) if v is value}
        return all(self.takes(node, name, value, layout) for name in names)

    def pays(self, node: Node, outer: _Block, inner: list[_Block]) -> bool:
        """Whether placing lowers the peak of the steps that it touches, or else their sum; for a
        bucket of gradients whether it keeps to the peak of all steps."""
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
        """Put a block into its whole: its bytes go, and those of the whole are live for both."""
        outer, inner = self.block_of(part.whole), self.blocks[move.block]
        self.places[inner.residents[0]] = part
        for block in (outer, inner):
            self.profile[block.first : block.last] -= block.bytes
        outer.first, outer.last = min(outer.first, inner.first), max(outer.last, inner.last)
        self.profile[outer.first : outer.last] += outer.bytes
