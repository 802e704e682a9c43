"""Storages: sets of values that share bytes because one views or overwrites the other.

The rule is that of Fig. 2 in "Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016).
There c(x) counts the operations that still have to read x. An operation may overwrite its operand x
if it is the last one: c(x) = 1. Here, all values in a storage S share one counter, so a view with
further uses protects the viewed value. At step t, the output y of node n overwrites the operand x
in S if and only if

    n's op permits y over x           (`Op.may_overwrite`, best operand first)
    c(S) = 1                          no step after t reads any value in S
    shape, bytes and layout of x and y are equal, and x fills S
    the root of S is no input and no state, and no other output of n has taken S
    n reads nothing else in S         two operands in one storage may have different offsets

Counters are not decremented. `S.last` is one past the last use of all values in S so far; graph
outputs are used one step past the last node. c(S) = 1 at step t means `S.last` = t + 1.

Invariant: at step t, `S.last` > t + 1 if and only if a later step reads a value of S. A value that
joins S after t views or overwrites a value in S. So its producer is a use of S after t, which
`S.last` already includes. The storage of a concatenation with parts has its full live range from
the start. Once y overwrites x, the uses of y extend `S.last`.

An output that replaces a state, or its copy on the device, always has that storage. Parts of
concatenations, and concatenations with parts, get their storage from `zero_copy` and overwrite
nothing. The arrival of a copy between device and host overwrites the unfinished result in every
plan; nothing else reads that. Values on the host have storages of their own, as copies overwrite
nothing. O(V + E) for V values and E edges. `sharing` and `placing` decide which storages share a
block of the arena (the recycled tags of the figure).
"""

from __future__ import annotations

from collections.abc import Mapping

from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.host_copies import fetched_state
from graphc.ir.types import Layout, contiguous_strides, span_bytes
from graphc.memory.liveness import Liveness
from graphc.memory.storages import Storage, Storages
from graphc.memory.zero_copy import Parts
from graphc.plans.memory_plan import How, Placement

NO_PARTS = Parts({}, {})


def assign_storages(
    graph: Graph,
    live: Liveness,
    strides: Mapping[Value, tuple[int, ...]],
    overwrite: bool,
    parts: Parts = NO_PARTS,
    copies_in_place: bool = False,
) -> Storages:
    """Assign values to storages. Views share those of viewed values, state updates those of states
    and, with `overwrite`, outputs those of operands.

    `strides` has the strides of values with their own storage that are not row-major. `parts` has
    the values computed inside a concatenation. With `copies_in_place`, arrivals of copies between
    device and host overwrite their operand without `overwrite`, too. Inputs are never overwritten:
    a feed keeps its bytes until its last use.
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
                over = replaced[value]
                is_copy = fetched_state(over) is not None
                assignment.join(value, over, own.get(value), "over" if is_copy else "state")
                continue
            name = node.op.output_name(position)
            found = None
            if overwrite or (copies_in_place and node.host_copy is not None):
                found = assignment.overwritten(node, step, value, name, taken)
            if found is not None:
                taken.add(assignment.placements[found].buffer)
                assignment.join(value, found, assignment.placements[found].layout, "over")
            else:
                assignment.open(value, "new")
    return Storages(assignment.storages, assignment.placements)


class _Assignment:
    """The storages and placements of the nodes so far, extended node by node."""

    def __init__(self, live: Liveness, parts: Parts, own: Mapping[Value, Layout]) -> None:
        self.live = live
        self.parts = parts
        self.own = own
        """The layouts of values that are not row-major, in their own storages."""
        self.wholes: dict[Value, int] = {}
        """The index of the storage of each concatenation with parts, once the storage exists."""
        self.storages: list[Storage] = []
        self.placements: dict[Value, Placement] = {}

    def open(self, value: Value, how: How) -> None:
        """Create a storage for the value, which becomes its root."""
        first, last = self.live.born[value], self.live.dies[value] + 1
        if isinstance(value, State):
            first, last = 0, self.live.end + 1
        index = self.open_storage(value, self.bytes_of(value), first, last)
        self.placements[value] = _placement(index, self.own.get(value), how)

    def bytes_of(self, value: Value) -> int:
        """Return the bytes that a value spans in its own storage."""
        layout = self.own.get(value)
        return value.type.bytes if layout is None else span_bytes(value.type, layout)

    def open_storage(self, root: Value, size: int, first: int, last: int) -> int:
        """Add a storage that is live on steps `[first, last)`, and return its index."""
        index = len(self.storages)
        self.storages.append(Storage(index, size, first, last, root, root.on_host))
        return index

    def place(self, value: Value) -> None:
        """Place a value in the storage of a concatenation, as a part or as the whole."""
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
        """Place a value in the storage of another value, which extends the storage's live range."""
        index = self.placements[other].buffer
        storage = self.storages[index]
        storage.last = max(storage.last, self.live.dies[value] + 1)
        self.placements[value] = _placement(index, layout, how, other)

    def views(self, node: Node) -> bool:
        """Place the outputs of a view op in the storage of its operand. Returns False if the node
        is not a view or the strides of the operand allow none."""
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
        """Return the operand that `value` may overwrite, or None."""
        permitted = node.op.may_overwrite.get(name, ())
        inputs = node.named_inputs() if permitted else {}
        for candidate in permitted:
            operands = inputs[candidate]
            for operand in operands if isinstance(operands, tuple) else (operands,):
                if self.is_free(node, step, operand, value, taken):
                    return operand
        return None

    def is_free(self, node: Node, step: int, operand: Value, value: Value, taken: set[int]) -> bool:
        """Return True if `value` may overwrite an operand that the op permits, by the rule of this
        module.

        `taken` has the storages that other outputs of the node overwrite.
        """
        placement = self.placements[operand]
        storage = self.storages[placement.buffer]
        return (
            operand.shape == value.shape
            and operand.type.bytes == value.type.bytes
            and self.bytes_of(value) == storage.bytes
            and placement.layout == self.own.get(value)
            and storage.last == step + 1  # this node is the last use: counter 1
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
