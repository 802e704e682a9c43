"""Independent checker of memory plans, by replay. It shares no code with the planners.

Problem: many values share bytes at different steps. Does each read find the bytes written for it?
The checker does not compare lifetimes, since the planner may have computed them wrongly. It replays
one step of the graph on a model of the arena and tracks the last writer of each byte.

The arena is cut into cells (`check_places`) at every edge of a value or workspace. So each of them
covers whole cells, and all bytes of a cell always have one writer. Host memory has the offsets
after the arena, so its cells are separate ones. Every write gets a number, its content; `owners`
stores the content of each cell. A view has the content of its operand, once NumPy's own rules have
confirmed its position. A concatenation has the contents of the parts placed inside it, and its own
content in the cells that it copies to: one number per cell.

Invariant: before step t, `owners` stores for each cell the content written there last by the
sources and steps 0, ..., t - 1. A value may be read if and only if all its cells store its content.
So two values may overlap unless one is written between the write and a read of the other. This is
the condition that lifetimes express, checked without lifetimes.

The replay does not cover the time while a kernel runs, nor the time after the step. So an output
may overlap an operand only if the op allows it, and then only exactly. Outputs and workspace of a
node are disjoint. A state is written only by its own update, since the next step reads it. In
addition, stated lifetimes must cover all uses and writes, since a program can be configured to
poison free bytes.

A copy between device and host may run at any time until its arrival (`check_copies`). The replay
writes its result where it starts, and finds its source intact where it arrives, so any time between
the two is covered.

Each operand and output takes as many cells as it covers, at most all C of them. The total is O(E C)
for E operands and outputs, as NumPy operations on slices. Few values are cut into more than a few
cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.text import text_window
from graphc.ir.types import align
from graphc.plans.check.check_copies import check_copies
from graphc.plans.check.check_places import PlacedValues
from graphc.plans.check.check_streams import check_streams
from graphc.plans.memory_plan import Buffer, MemoryPlan

NOBODY = -1
"""The content of cells that have no value: nothing or a workspace was written to them."""

ELSEWHERE = -2
"""The content that no cell has, for cells of a view outside its operand."""


def check_plan(plan: MemoryPlan) -> None:
    """Raise `PlanError`, naming both values, if a step under this plan would corrupt a value.

    Rejects overlap, illegal overwriting, misalignment, positions outside the arena or their buffer,
    lifetimes that end before the last use, reads of values that are not computed, invalid views,
    workspaces that are too small, an update that runs twice, streams on which nodes that touch the
    same bytes are not ordered, and copies between device and host whose source or result is used
    too early.
    """
    _Replay(plan).run()


class _Replay:
    """A check of a plan: first of its stated figures, then a replay of one step over the cells."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.names = self.graph.names
        self.owner_of: dict[Value, Any] = {}
        """Value → the content that a read of the value must find: a number, or an array with one
        number per cell if parts of a concatenation have their own. A view has the content of its
        operand."""
        self.contents: list[Value] = []
        """Content → the value that was written, or the state that this value replaces."""
        self.writers: list[Value] = []
        """Content → the value that was written."""
        self.root: dict[Value, Value] = {}
        """The output of an update → the state that it replaces."""
        self.places = PlacedValues(plan)
        self.owners = np.full(self.places.count, NOBODY, np.int64)
        """Cell → the content that was written to it last."""
        self.by_cell = np.empty(self.places.count, np.int64)
        """An array by cell without lasting content."""
        self.is_state = np.zeros(self.places.count, bool)
        for state in self.graph.states:
            self.is_state[self.places.cells_of(state)] = True

    def run(self) -> None:
        """Check the stated figures, then replay one step; raises `PlanError`."""
        self.check_buffers()
        check_copies(self.plan, self.places)
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
        """Check that every buffer is aligned and inside the arena, or inside host memory."""
        plan = self.plan
        host = plan.host_start, plan.host_start + plan.host_bytes
        for buffer in (*plan.buffers, *plan.workspaces.values()):
            who, on_host = f"buffer {buffer.index}", buffer.kind == "host"
            first, last = host if on_host else (0, plan.arena_bytes)
            if buffer.offset % self.plan.alignment:
                raise PlanError(
                    f"{who} starts at {buffer.offset}, which is not a multiple of "
                    f"{self.plan.alignment}",
                    [who],
                )
            if buffer.offset < first or buffer.offset + buffer.bytes > last:
                where = "host memory" if on_host else "the arena"
                raise PlanError(
                    f"{who} ends at {buffer.offset + buffer.bytes}, outside {where} of "
                    f"{last - first} bytes{f' from {first} on' if on_host else ''}",
                    [who],
                )

    def check_slots(self) -> None:
        """Check that slots are large enough and that nothing else shares their bytes.

        Copies write to slots at any time.
        """
        slots, names = self.plan.slots, self.names
        spans = [(*span, names[value]) for value, span in self.places.spans.items()]
        extra_buffers = [
            (f"the workspace of {n.label}", b) for n, b in self.plan.workspaces.items()
        ]
        extra_buffers += [(f"the slot of {names[slot.value]}", slot.buffer) for slot in slots]
        spans += [
            (scratch.offset, scratch.offset + scratch.bytes, who) for who, scratch in extra_buffers
        ]
        for slot in slots:
            name, first = names[slot.value], slot.buffer.offset
            has, needed = slot.buffer.bytes, int(np.diff(self.places.spans[slot.value])[0])
            if has < needed:
                raise PlanError(
                    f"the slot of {name} has {has} bytes, but the value needs {needed}", [name]
                )
            over = [who for low, high, who in spans if low < first + has and first < high]
            if len(over) > 1:
                other = next((who for who in over if who != f"the slot of {name}"), name)
                raise PlanError(f"the slot of {name} overlaps {other}", [name, other])

    def check_lifetimes(self) -> None:
        """Check that all uses and writes of a value are in the stated lifetime of its buffer."""
        end = len(self.graph.nodes)
        for step, node in enumerate(self.graph.nodes):
            for value in node.inputs + node.outputs:
                self.check_alive(value, step, step + 1, f"step {step} ({node.label})")
        for name, value in self.graph.outputs.items():
            self.check_alive(value, end, end + 1, f"output {name!r}")
        for state in self.graph.states:
            self.check_alive(state, 0, end + 1, "the next step")

    def check_alive(self, value: Value, first: int, last: int, who: str) -> None:
        """Raise `PlanError` unless the buffer of a value is live during steps `[first, last)`."""
        lifetime = self.plan.buffers[self.plan.placements[value].buffer].lifetime
        if first < lifetime.first or last > lifetime.last:
            name = self.names[value]
            raise PlanError(
                f"value {name} is used by {who}, outside its recorded lifetime [{lifetime.first}, "
                f"{lifetime.last})",
                [name, who],
            )

    # --- replay ---

    def write(self, value: Value, who: str) -> None:
        """Write a value: give its cells a new content.

        Raises `PlanError` if `who`, the writer, would overwrite a state.
        """
        cells = self.places.cells_of(value)
        if value.node is not None and value.node.op.copies_to:  # gaps are copied, too
            cells = self.places.cell_range(*self.places.spans[value])
        self.spare_states(cells, who, self.names[value], self.root.get(value, value))
        self.owner_of[value] = len(self.contents)
        self.contents.append(self.root.get(value, value))
        self.writers.append(value)
        self.owners[cells] = self.owner_of[value]

    def read(self, value: Value, step: int, node: Node) -> None:
        self.expect(value, f"step {step} ({node.label}) reads it", node)

    def expect(self, value: Value, use: str, node: Node | None = None) -> None:
        """Raise `PlanError` unless all cells of a value have the content that was written for it.

        `use` describes the read, for the message.
        """
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
        """Replay the writes of a node.

        `updated` maps each state replaced so far to the name of its new value.
        """
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
        scratch = self.plan.workspaces.get(node)
        self.check_workspace(node, scratch)
        if scratch is not None:
            region = (scratch.offset, scratch.offset + scratch.bytes)
            for value in node.inputs + node.outputs:
                self.check_apart(node, value, region)
            cells = self.places.cell_range(*region)
            self.spare_states(cells, f"the workspace of {node.label}", "workspace", None)
            self.owners[cells] = NOBODY  # a kernel leaves arbitrary bytes in its workspace
        replaced = node.replaced
        for value in node.outputs:
            if value in replaced:
                state = replaced[value]
                if state in updated:
                    names = [self.names[state], updated[state]]
                    raise PlanError(f"state {names[0]} is updated twice in one step", names)
                if self.places.spans[value] != self.places.spans[state]:
                    names = [self.names[state], self.names[value]]
                    raise PlanError(
                        f"the update of {names[0]} has another placement than the state", names
                    )
                updated[state] = self.names[value]
                self.root[value] = self.root.get(state, state)
            self.write(value, f"step {step} ({node.label})")

    def check_piece(self, value: Value) -> None:
        """Check that a computed value is aligned to its element size, writable and not a view."""
        placement, name = self.plan.placements[value], self.names[value]
        if placement.how == "view" or not self.places.is_writable(value):
            raise PlanError(
                f"value {name} is placed as a view with the strides {placement.strides}, but it "
                f"is not a view of a value in buffer {placement.buffer}, and its op cannot write "
                "those strides",
                [name, f"buffer {placement.buffer}"],
            )
        if self.places.spans[value][0] % value.type.dtype.itemsize:
            raise PlanError(
                f"value {name} starts at {self.places.spans[value][0]}, which is not a multiple "
                f"of its element size of {value.type.dtype.itemsize} bytes",
                [name],
            )

    def check_workspace(self, node: Node, scratch: Buffer | None) -> None:
        """Check that a node's workspace has at least the bytes that its kernel needs."""
        types = self.plan.target.workspace(node, self.plan.strided)
        needed = sum(align(type.bytes, self.plan.alignment) for type in types)
        has = 0 if scratch is None else scratch.bytes
        if has < needed:
            raise PlanError(
                f"{node.label} needs a workspace of {needed} bytes, but has "
                f"{has}{self.near(node)}; plan again if another version of graphc wrote the plan",
                [node.label],
            )

    def content_of_view(self, value: Value, source: Value) -> Any:
        """Return the content of a view: the part of the content of `source` in the view's cells."""
        content = self.owner_of[source]
        if isinstance(content, int):
            return content
        of_source, of_value = (self.places.cells_of(v) for v in (source, value))
        self.by_cell[of_value] = ELSEWHERE
        self.by_cell[of_source] = content
        return self.by_cell[of_value].copy()

    def gather(self, node: Node, step: int) -> bool:
        """Replay a concatenation if some of its parts are computed in place.

        Returns False if none is. Parts in place keep their content; the cells of copied parts get
        that of the output.
        """
        (y,) = node.outputs
        inside = self.places.inside(node)
        if not inside:
            return False
        self.check_piece(y)
        held = [(self.places.cells_of(value), self.owner_of[value]) for value in inside]
        self.write(y, f"step {step} ({node.label})")
        # Writing `y` gave all its cells one content; restore that of parts in place, which are not
        # touched.
        for cells, content in held:
            self.owners[cells] = content
        self.owner_of[y] = self.owners[self.places.cells_of(y)].copy()
        for value in node.inputs:  # copied operands may only overlap parts in place
            self.expect(value, f"{node.label} has copied it", node)
        return True

    def check_overlaps(self, node: Node, value: Value, outputs: set[Value]) -> None:
        """Check that an output overlaps no other output, and only operands that it may overwrite.

        It must have the same layout as such an operand.
        """
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
                        f"{node.label} reads {names[0]} and overwrites it with {names[1]}, which "
                        f"the op does not allow{self.near(node)}",
                        names,
                    )
        for other in outputs - {value}:
            if self.places.overlap(other, value):
                names = [self.names[other], self.names[value]]
                raise PlanError(
                    f"outputs {names[0]} and {names[1]} overlap{self.near(node)}", names
                )

    def check_apart(self, node: Node, value: Value, region: tuple[int, int]) -> None:
        """Check that a node's workspace, at the bytes `region`, does not overlap `value`.

        `value` is an operand or output of the node.
        """
        low, high = self.places.spans[value]
        if low < region[1] and region[0] < high:
            names = [self.names[value], f"workspace of {node.label}"]
            raise PlanError(f"{names[1]} overlaps {names[0]}{self.near(node)}", names)

    def spare_states(self, cells: Any, who: str, name: str, own: Value | None) -> None:
        """Raise `PlanError` if a write to `cells` would overwrite a state other than `own`."""
        if not self.is_state[cells].any():
            return
        for owner in np.unique(self.owners[cells]).tolist():
            victim = self.contents[owner] if owner != NOBODY else None
            if isinstance(victim, State) and own is not victim:
                names = [self.names[victim], name]
                raise PlanError(f"{who} would overwrite the state {names[0]}", names)
