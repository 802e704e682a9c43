"""An independent checker of memory plans. It shares no code with the planners.

Problem: many values have the same bytes at different steps. Does each read find what was written
for it? The checker does not compare lifetimes, which a planner may have got wrong; it replays one
step of the graph over a model of the arena, and looks who wrote last.

The arena is cut into cells (`check_places`): at every edge of a value or workspace there is a cut,
so each of them covers whole cells, and all bytes of a cell always have one writer. Every write has
a number, its content; `owners` says of each cell which content it holds. A view has the content of
what it views, after NumPy's own rules have placed it there. A concatenation holds the contents of
the parts that lie in it, and its own in the cells that it copies to: one number a cell.

Invariant: before step t, `owners` has for each cell the content written there last by the sources
and steps 0, ..., t - 1. A value may be read if and only if all its cells hold its content. So two
values may lie over each other as they please, unless one is written between the write and a read of
the other; this is just what a lifetime stands for, and needs none.

The replay does not see what happens while a kernel runs, nor after the step. So an output may lie
over an operand only where the op says so and exactly over it; outputs and workspace of a node lie
apart; and a state is written by nothing but its own update, since the next step reads it. Apart
from the replay, stated lifetimes must cover all readers and writers, since a program may be told to
poison bytes that are free.

Cost: for every operand and output as many cells as it covers, at most all C of them: O(E C), as
operations of NumPy on slices. A value is seldom cut into more than a few.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.text import text_window
from graphc.ir.types import align
from graphc.plans.check_places import PlacedValues, numbers
from graphc.plans.check_streams import check_streams
from graphc.plans.memory_plan import Buffer, MemoryPlan

NOBODY = -1
"""The content of cells that hold no value: nothing was written there, or a workspace was."""


def check_plan(plan: MemoryPlan) -> None:
    """Raise `PlanError`, with both culprits, if a step under this plan would corrupt a value.

    Rejects overlap, illegal overwriting, misalignment, places outside the arena or their buffer,
    lifetimes that end before the last reader, reads of something not computed, views that are none,
    workspaces that are too small, an update that is run twice, and streams on which nodes that
    touch the same bytes may change places.
    """
    _Replay(plan).run()


class _Replay:
    """One check of a plan: its statements, then a replay of one step over the cells."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.names = self.graph.names
        self.owner_of: dict[Value, Any] = {}
        """The content that a value must be read as: a number, or one for each of its cells where
        parts of a concatenation keep theirs. A view has the content of what it views."""
        self.contents: list[Value] = []
        """Content → the value written, or the state that this replaces."""
        self.writers: list[Value] = []
        """Content → the value written."""
        self.root: dict[Value, Value] = {}
        """The output of an update → the state that it replaces."""
        self.places = PlacedValues(plan)
        self.owners = np.full(self.places.count, NOBODY, np.int64)
        """Cell → the content that was written there last."""
        self.is_state = np.zeros(self.places.count, bool)
        for state in self.graph.states:
            self.is_state[self.places.cells_of(state)] = True

    def run(self) -> None:
        """Check what the plan states, then replay one step; raises `PlanError`."""
        self.check_buffers()
        self.check_slots()
        self.check_lifetimes()
        for source in self.graph.sources:
            self.check_piece(source)
            self.write(source, f"before the first step, {self.names[source]}")
        updated: dict[Value, str] = {}
        for step, node in enumerate(self.graph.nodes):
            for value in node.inputs:
                self.read(value, step, node)
            self.execute(node, step, updated)
        for name, value in self.graph.outputs.items():
            self.expect(value, f"output {name!r} is copied out")
        check_streams(self.plan, self.places)

    # --- static statements ---

    def check_buffers(self) -> None:
        """Every buffer is aligned and lies in the arena."""
        for buffer in (*self.plan.buffers, *self.plan.workspaces.values()):
            who = f"buffer {buffer.index}"
            if buffer.offset % self.plan.alignment:
                raise PlanError(
                    f"{who} starts at {buffer.offset}, no multiple of {self.plan.alignment}", [who]
                )
            if buffer.offset < 0 or buffer.offset + buffer.bytes > self.plan.arena_bytes:
                raise PlanError(
                    f"{who} ends at {buffer.offset + buffer.bytes}, outside the arena of "
                    f"{self.plan.arena_bytes} bytes",
                    [who],
                )

    def check_slots(self) -> None:
        """No value, workspace or other slot has a byte of a slot, which has all bytes of its value:
        copies go there at any time."""
        slots, names = self.plan.slots, self.names
        spans = [(*span, names[value]) for value, span in self.places.spans.items()]
        rooms = [(f"the workspace of {n.label}", b) for n, b in self.plan.workspaces.items()]
        rooms += [(f"the slot of {names[slot.value]}", slot.buffer) for slot in slots]
        spans += [(room.offset, room.offset + room.bytes, who) for who, room in rooms]
        for slot in slots:
            name, first = names[slot.value], slot.buffer.offset
            has, needed = slot.buffer.bytes, int(np.diff(self.places.spans[slot.value])[0])
            if has < needed:
                raise PlanError(
                    f"the slot of {name} has {has} bytes, and the value takes {needed}", [name]
                )
            over = [who for low, high, who in spans if low < first + has and first < high]
            if len(over) > 1:
                other = next((who for who in over if who != f"the slot of {name}"), name)
                raise PlanError(f"the slot of {name} overlaps {other}", [name, other])

    def check_lifetimes(self) -> None:
        """Every reader and writer of a value lies inside its buffer's stated lifetime."""
        end = len(self.graph.nodes)
        for step, node in enumerate(self.graph.nodes):
            for value in node.inputs + node.outputs:
                self.check_alive(value, step, step + 1, f"step {step} ({node.label})")
        for name, value in self.graph.outputs.items():
            self.check_alive(value, end, end + 1, f"output {name!r}")
        for state in self.graph.states:
            self.check_alive(state, 0, end + 1, "the next step")

    def check_alive(self, value: Value, first: int, last: int, who: str) -> None:
        """Raise `PlanError` unless steps [first, last) lie in the lifetime of a value's buffer."""
        lifetime = self.plan.buffers[self.plan.placements[value].buffer].lifetime
        if first < lifetime.first or last > lifetime.last:
            name = self.names[value]
            raise PlanError(
                f"value {name} is used by {who}, outside its stated lifetime "
                f"[{lifetime.first}, {lifetime.last})",
                [name, who],
            )

    # --- replay ---

    def write(self, value: Value, who: str) -> None:
        """Give the cells of a value a new content; raises `PlanError` if a state would be lost."""
        cells = self.places.cells_of(value)
        self.spare_states(cells, who, self.names[value], self.root.get(value, value))
        self.owner_of[value] = len(self.contents)
        self.contents.append(self.root.get(value, value))
        self.writers.append(value)
        self.owners[cells] = self.owner_of[value]

    def read(self, value: Value, step: int, node: Node) -> None:
        self.expect(value, f"step {step} ({node.label}) reads it", node)

    def expect(self, value: Value, use: str, node: Node | None = None) -> None:
        """Raise `PlanError` unless all cells of a value hold its content; `use` says who reads."""
        name = self.names.get(value, repr(value))
        if value not in self.owner_of:
            raise PlanError(
                f"value {name} is not computed when {use}{self.near(node)}", [name, use]
            )
        content = self.owner_of[value]
        held = self.owners[self.places.cells_of(value)]
        wrong = held[held != content]
        if wrong.size:
            other = int(wrong[0])
            thief = "a workspace" if other == NOBODY else self.names[self.writers[other]]
            raise PlanError(
                f"value {name} is overwritten by {thief} before {use}{self.near(node)}",
                [name, thief],
            )

    def near(self, node: Node | None) -> str:
        if node is None:
            return ""
        return "\n" + text_window(self.graph, node)

    def execute(self, node: Node, step: int, updated: dict[Value, str]) -> None:
        """Replay what a node writes; `updated` has the states replaced so far, and by what."""
        outputs = set(node.outputs)
        viewed = self.places.viewed(node)
        if viewed is not None:
            self.places.check_view(node, viewed)
            for value in node.outputs:
                self.owner_of[value] = self.content_of_view(value, viewed)
            return
        if node.op.gathers is not None and self.gather(node, step):
            return
        for value in node.outputs:
            self.check_piece(value)
            self.check_overlaps(node, value, outputs)
        room = self.plan.workspaces.get(node)
        self.check_workspace(node, room)
        if room is not None:
            region = (room.offset, room.offset + room.bytes)
            for value in node.inputs + node.outputs:
                self.check_apart(node, value, region)
            cells = self.places.cell_range(*region)
            self.spare_states(cells, f"the workspace of {node.label}", "workspace", None)
            self.owners[cells] = NOBODY  # a kernel leaves anything in its workspace
        replaced = node.replaced
        for value in node.outputs:
            if value in replaced:
                state = replaced[value]
                if state in updated:
                    names = [self.names[state], updated[state]]
                    raise PlanError(f"state {names[0]} is updated twice in one step", names)
                if self.places.spans[value] != self.places.spans[state]:
                    names = [self.names[state], self.names[value]]
                    raise PlanError(f"the update of {names[0]} is placed elsewhere", names)
                updated[state] = self.names[value]
                self.root[value] = state
            self.write(value, f"step {step} ({node.label})")

    def check_piece(self, value: Value) -> None:
        """A value that is computed lies at addresses that its elements can have, with strides that
        its kernel can write, and is not stated to be a view."""
        placement, name = self.plan.placements[value], self.names[value]
        if placement.how == "view" or not self.places.is_writable(value):
            raise PlanError(
                f"value {name} is placed as a view, with the strides {placement.strides}, but is "
                f"no view of what lies in buffer {placement.buffer}, and cannot be computed so",
                [name, f"buffer {placement.buffer}"],
            )
        if self.places.spans[value][0] % value.type.dtype.itemsize:
            raise PlanError(
                f"value {name} starts at {self.places.spans[value][0]}, no multiple of its "
                f"elements' {value.type.dtype.itemsize} bytes",
                [name],
            )

    def check_workspace(self, node: Node, room: Buffer | None) -> None:
        """A node's workspace has at least the bytes that its kernel asks for."""
        types = self.plan.target.workspace(node, self.plan.strided)
        needed = sum(align(type.bytes, self.plan.alignment) for type in types)
        has = 0 if room is None else room.bytes
        if has < needed:
            raise PlanError(
                f"{node.label} needs a workspace of {needed} bytes and has {has}{self.near(node)}; "
                "plan again if this version of graphc did not make the plan",
                [node.label],
            )

    def content_of_view(self, value: Value, source: Value) -> Any:
        """The content of a view: that of `source`, in the cells of the view."""
        content = self.owner_of[source]
        if isinstance(content, int):
            return content
        of_source, of_value = (numbers(self.places.cells_of(v)) for v in (source, value))
        return content[np.searchsorted(of_source, of_value)]

    def gather(self, node: Node, step: int) -> bool:
        """Put an output together whose parts lie inside it; False where none does.

        A part in its place stays what it is; what is copied belongs to the output.
        """
        (y,) = node.outputs
        inside = self.places.inside(node)
        if not inside:
            return False
        self.check_piece(y)
        held = [(self.places.cells_of(value), self.owner_of[value]) for value in inside]
        self.write(y, f"step {step} ({node.label})")
        # Writing y gave all its cells one content; those of parts in place were not touched.
        for cells, content in held:
            self.owners[cells] = content
        self.owner_of[y] = self.owners[self.places.cells_of(y)].copy()
        for value in node.inputs:  # what is copied may be a view of a part, but of no other bytes
            self.expect(value, f"{node.label} has copied it", node)
        return True

    def check_overlaps(self, node: Node, value: Value, outputs: set[Value]) -> None:
        """An output may lie over an operand only where the op says so, and exactly over it."""
        position = node.outputs.index(value)
        name = node.op.output_name(position)
        allowed = set(node.op.may_overwrite.get(name, ()))
        allowed |= {node.op.must_overwrite[name]} if name in node.op.must_overwrite else set()
        for index, operand in enumerate(node.inputs):
            if self.places.overlap(operand, value):
                fits = self.places.layout(operand) == self.places.layout(value)
                if node.op.input_name(index) not in allowed or not fits:
                    if any(
                        other is operand and node.op.input_name(i) in allowed and fits
                        for i, other in enumerate(node.inputs)
                    ):
                        continue
                    names = [self.names[operand], self.names[value]]
                    raise PlanError(
                        f"{node.label} reads {names[0]} and writes {names[1]} over it, which the "
                        f"op does not allow{self.near(node)}",
                        names,
                    )
        for other in outputs - {value}:
            if self.places.overlap(other, value):
                names = [self.names[other], self.names[value]]
                raise PlanError(
                    f"outputs {names[0]} and {names[1]} overlap{self.near(node)}", names
                )

    def check_apart(self, node: Node, value: Value, region: tuple[int, int]) -> None:
        """A node's workspace, the bytes of `region`, overlaps no operand or output."""
        low, high = self.places.spans[value]
        if low < region[1] and region[0] < high:
            names = [self.names[value], f"workspace of {node.label}"]
            raise PlanError(f"{names[1]} overlaps {names[0]}{self.near(node)}", names)

    def spare_states(self, cells: Any, who: str, name: str, own: Value | None) -> None:
        """A state may only be written by its own update."""
        if not self.is_state[cells].any():
            return
        for owner in np.unique(self.owners[cells]).tolist():
            victim = self.contents[owner] if owner != NOBODY else None
            if isinstance(victim, State) and own is not victim:
                names = [self.names[victim], name]
                raise PlanError(f"{who} would overwrite the state {names[0]}", names)
