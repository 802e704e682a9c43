"""Storages: which values share bytes because one views or overwrites the other.

The rule is that of Fig. 2 in "Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016).
There c(x) counts the operations that still have to read x, and an operation may write over its
operand x when it is the only one left, c(x) = 1. Values in one storage S have one counter here, so
a view that is still read protects what it views. At step t the output y of node n is written over
the operand x in S if and only if

    n's op permits y over x           (`Op.may_overwrite`, best operand first)
    c(S) = 1                          no step after t reads any value in S
    shape, bytes and layout of x and y are equal, and x fills S
    S begins with no input and no state, and no other output of n has taken it
    n reads nothing else in S         two operands in one storage may lie in different elements

Counters are not counted down: S.last is one past the last reader of all values in S so far, with
graph outputs read one step past the last node, and c(S) = 1 at step t is S.last = t + 1.

Invariant: at step t, S.last > t + 1 if and only if a later step reads a value of S. What joins S
after t does so by viewing or overwriting a value in S, so it is made by a reader of S behind t, and
that read is in S.last already; the storage of a concatenation that holds parts has its lifetime
from the start. Once y is written over x, the readers of y extend S.last.

An output that replaces a state always has the state's storage; a part of a concatenation, and a
concatenation that holds parts, have theirs from `zero_copy` and overwrite nothing. O(V + E) for
V values and E edges. Which storages then share a block of the arena, the figure's recycled tags,
is another question: see `sharing` and `placing`.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.allocation.liveness import Liveness
from graphc.allocation.storages import Storage, Storages
from graphc.allocation.zero_copy import Parts
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.types import Layout, contiguous_strides, span_bytes
from graphc.plans.memory_plan import How, Placement

NO_PARTS = Parts({}, {})


def assign_storages(
    graph: Graph,
    live: Liveness,
    strides: Mapping[Value, tuple[int, ...]],
    overwrite: bool,
    parts: Parts = NO_PARTS,
) -> Storages:
    """Merge views and states always, and operands that may be overwritten where `overwrite` holds.

    `strides` says of values with a storage of their own how they lie, where that is not row-major;
    `parts` which values are computed inside a concatenation. Inputs are never overwritten: a feed's
    bytes are the feed's until its last reader.
    """
    own = {value: Layout(0, each) for value, each in strides.items()}
    assignment = _Assignment(live, parts, own)
    for source in graph.sources:
        assignment.open(source, "state" if isinstance(source, State) else "new")
    for step, node in enumerate(graph.nodes):
        if assignment.views(node):
            continue
        taken: set[int] = set()
        replaced = node.replaced
        for position, value in enumerate(node.outputs):
            if value in parts.places or value in parts.lifetimes:
                assignment.place(value)
                continue
            if value in replaced:
                assignment.join(value, replaced[value], own.get(value), "state")
                continue
            name = node.op.output_name(position)
            found = assignment.overwritten(node, step, value, name, taken) if overwrite else None
            if found is not None:
                taken.add(assignment.placements[found].buffer)
                assignment.join(value, found, assignment.placements[found].layout, "over")
            else:
                assignment.open(value, "new")
    return Storages(assignment.storages, assignment.placements)


class _Assignment:
    """Storages and placements so far, in the order in which nodes run."""

    def __init__(self, live: Liveness, parts: Parts, own: Mapping[Value, Layout]) -> None:
        self.live = live
        self.parts = parts
        self.own = own
        """The layouts, in storages of their own, of values that are not row-major."""
        self.wholes: dict[Value, int] = {}
        """The storage of each concatenation that holds its parts, once there is one."""
        self.storages: list[Storage] = []
        self.placements: dict[Value, Placement] = {}

    def open(self, value: Value, how: How) -> None:
        """Give the value a storage of its own."""
        first, last = self.live.born[value], self.live.dies[value] + 1
        if isinstance(value, State):
            first, last = 0, self.live.end + 1
        index = self.open_storage(value, self.bytes_of(value), first, last)
        self.placements[value] = _placement(index, self.own.get(value), how)

    def bytes_of(self, value: Value) -> int:
        """The bytes from end to end of a value in a storage of its own."""
        layout = self.own.get(value)
        return value.type.bytes if layout is None else span_bytes(value.type, layout)

    def open_storage(self, root: Value, size: int, first: int, last: int) -> int:
        """Add a storage that is alive on steps [first, last), and return its index."""
        index = len(self.storages)
        self.storages.append(Storage(index, size, first, last, root))
        return index

    def place(self, value: Value) -> None:
        """Put a value into the storage of a concatenation, as a part of it or as the whole."""
        part = self.parts.places.get(value)
        whole = part.whole if part else value
        if whole not in self.wholes:
            lifetime = self.parts.lifetimes[whole]
            self.wholes[whole] = self.open_storage(value, self.bytes_of(whole), *lifetime)
        index = self.wholes[whole]
        self.placements[value] = (
            _placement(index, part.layout, "part", part.reader)
            if part
            else _placement(index, self.own.get(value), "new")
        )

    def join(self, value: Value, other: Value, layout: Layout | None, how: How) -> None:
        """Put a value into the storage of another one, which then lives for its readers too."""
        index = self.placements[other].buffer
        storage = self.storages[index]
        storage.last = max(storage.last, self.live.dies[value] + 1)
        self.placements[value] = _placement(index, layout, how, other)

    def views(self, node: Node) -> bool:
        """Place the outputs of a view op inside its operand, if strides allow it."""
        viewed = node.viewed
        if viewed is None:
            return False
        layout = self.placements[viewed].layout
        layouts = node.op.view(node, layout or Layout(0, contiguous_strides(viewed.type)))
        if layouts is None:
            return False
        for value, inner in zip(node.outputs, layouts, strict=True):
            trivial = inner == Layout(0, contiguous_strides(value.type))
            self.join(value, viewed, None if trivial else inner, "view")
        return True

    def overwritten(
        self, node: Node, step: int, value: Value, name: str, taken: set[int]
    ) -> Value | None:
        """The operand whose bytes `value` may take, if any."""
        permitted = node.op.may_overwrite.get(name, ())
        inputs = node.named_inputs() if permitted else {}
        for candidate in permitted:
            operands = inputs[candidate]
            for operand in operands if isinstance(operands, tuple) else (operands,):
                if self.is_free(node, step, operand, value, taken):
                    return operand
        return None

    def is_free(self, node: Node, step: int, operand: Value, value: Value, taken: set[int]) -> bool:
        """Whether `value` may be written over an operand that the op permits: the rule above.

        `taken` holds the storages that other outputs of the node are written over.
        """
        placement = self.placements[operand]
        storage = self.storages[placement.buffer]
        return (
            operand.shape == value.shape
            and operand.type.bytes == value.type.bytes
            and self.bytes_of(value) == storage.bytes
            and placement.layout == self.own.get(value)
            and storage.last == step + 1  # this node is the last reader: counter 1
            and not isinstance(storage.root, State | Input)
            and placement.buffer not in taken
            and all(
                other is operand or self.placements[other].buffer != placement.buffer
                for other in node.inputs
            )
        )


def _placement(
    storage: int, layout: Layout | None, how: How, over: Value | None = None
) -> Placement:
    if layout is None:
        return Placement(storage, 0, None, how, over)
    return Placement(storage, layout.offset, layout.strides, how, over)
