"""An independent checker of memory plans. It shares no code with the planners.

It replays the graph over a model of the arena in which each byte knows the value that it holds, and
recomputes every lifetime. A plan passes if every read finds the value it asks for, every write is
allowed by the op, and the plan's own statements about lifetimes and sizes hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphc.errors import PlanError
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.plan import Buffer, MemoryPlan, align
from graphc.ir.text import text_window
from graphc.ir.types import outer_axes

NOBODY = -1

OUTLINE = bytearray(16)
"""Memory for arrays whose elements are never touched, only their addresses."""


def _parts(sizes: Sequence[int], axis: int, array: Any) -> list[Any]:
    before = (slice(None),) * axis
    return [array[(*before, slice(sum(sizes[:i]), sum(sizes[: i + 1])))] for i in range(len(sizes))]


def _concatenated(node: Node, y: Any) -> list[Any]:
    axis = node.attributes.axis
    return _parts([value.shape[axis] for value in node.inputs], axis, y)


VIEWS: dict[str, Callable[[Node, Any], list[Any]]] = {
    "reshape": lambda node, x: [np.reshape(x, node.attributes.shape, copy=False)],
    "transpose": lambda node, x: [np.transpose(x, node.attributes.permutation)],
    "broadcast_to": lambda node, x: [np.broadcast_to(x, node.attributes.shape)],
    "slice": lambda node, x: [x[node.attributes.index()]],
    "split": lambda node, x: _parts(node.attributes.sizes, node.attributes.axis, x),
}
"""What each view op shows, by NumPy."""

GATHERED: dict[str, Callable[[Node, Any], list[Any]]] = {"concat": _concatenated}
"""Where each part of an output that is put together lies, by NumPy."""


def _row_major(value: Value) -> tuple[int, ...]:
    sizes = [*value.shape[1:], value.type.dtype.itemsize]
    return tuple(int(np.prod(sizes[axis:], dtype=np.int64)) for axis in range(value.type.rank))


def _numbers(cells: Any) -> Any:
    """An index of cells as their numbers."""
    return np.arange(cells.start, cells.stop) if isinstance(cells, slice) else cells


def check_plan(plan: MemoryPlan) -> None:
    """Raise `PlanError`, with both culprits, if a step under this plan would corrupt a value.

    Rejects overlap, illegal overwriting, misalignment, places outside the arena or their buffer,
    lifetimes that end before the last reader, reads of something not computed, views that are none,
    workspaces that are too small, and an update that is run twice.
    """
    _Replay(plan).run()


class _Replay:
    def __init__(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.names = self.graph.names
        self.owner_of: dict[Value, Any] = {}
        """Identity of a value's content: a number, or one a cell where parts keep theirs. A view
        has the content of what it shows."""
        self.contents: list[Value] = []
        self.writers: list[Value] = []
        self.root: dict[Value, Value] = {}
        for value in self.graph.values:
            if value not in plan.placements:
                raise PlanError(f"value {self.names[value]} has no place", [self.names[value]])
        self.spans = {value: self.span(value) for value in self.graph.values}
        self.scattered = {
            plan.placements[value].buffer
            for node in self.graph.nodes
            if not self.shows(node)
            for value in node.outputs
            if plan.placements[value].strides is not None
        }
        """Buffers with values that are written in pieces between one another."""
        self.pieces = {value: self.pieces_of(value) for value in self.graph.values}
        edges = [edge for pieces in self.pieces.values() for piece in pieces for edge in piece]
        for buffer in plan.workspaces.values():
            edges += [buffer.offset, buffer.offset + buffer.bytes]
        marks = np.unique(np.array([0, *edges], np.int64))
        self.cells = {edge: cell for cell, edge in enumerate(marks.tolist())}
        self.owners = np.full(len(marks), NOBODY, np.int64)
        self.is_state = np.zeros(len(marks), bool)
        for state in self.graph.states:
            self.is_state[self.cells_of(state)] = True

    def run(self) -> None:
        self.check_buffers()
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

    # --- static statements ---

    def span(self, value: Value) -> tuple[int, int]:
        """First byte and end of a value in the arena."""
        placement = self.plan.placements[value]
        buffer = self.plan.buffers[placement.buffer]
        start = buffer.offset + placement.offset
        if placement.strides is None:
            size = value.type.bytes
        else:
            reach = zip(value.shape, placement.strides, strict=True)
            size = sum((n - 1) * stride for n, stride in reach) + value.type.dtype.itemsize
        if placement.offset < 0 or placement.offset + size > buffer.bytes:
            name = self.names[value]
            raise PlanError(
                f"value {name} of {size} bytes at {placement.offset} leaves its buffer "
                f"{buffer.index} of {buffer.bytes} bytes",
                [name, f"buffer {buffer.index}"],
            )
        return start, start + size

    def strides(self, value: Value) -> tuple[int, ...] | None:
        return self.plan.placements[value].strides

    def pieces_of(self, value: Value) -> list[tuple[int, int]]:
        """First byte and end of each piece of a value; one piece where nothing lies between."""
        placement, (start, end) = self.plan.placements[value], self.spans[value]
        if placement.strides is None or placement.buffer not in self.scattered:
            return [(start, end)]
        axes = sorted(
            (stride, n) for n, stride in zip(value.shape, placement.strides, strict=True) if n > 1
        )
        size, starts = value.type.dtype.itemsize, np.zeros(1, np.int64)
        for stride, n in axes:
            if stride == size and len(starts) == 1:
                size *= n
            elif stride > 0:
                starts = np.add.outer(np.arange(n) * stride, starts).ravel()
        return [(start + at, start + at + size) for at in starts.tolist()]

    def check_buffers(self) -> None:
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
        lifetime = self.plan.buffers[self.plan.placements[value].buffer].lifetime
        if first < lifetime.first or last > lifetime.last:
            name = self.names[value]
            raise PlanError(
                f"value {name} is used by {who}, outside its stated lifetime "
                f"[{lifetime.first}, {lifetime.last})",
                [name, who],
            )

    # --- replay ---

    def cell_range(self, start: int, end: int) -> slice:
        return slice(self.cells[start], self.cells[end])

    def cells_of(self, value: Value) -> Any:
        """Index of a value's cells, ascending."""
        ranges = [(self.cells[start], self.cells[end]) for start, end in self.pieces[value]]
        if len(ranges) == 1:
            return slice(*ranges[0])
        return np.concatenate([np.arange(*cells) for cells in ranges])

    def write(self, value: Value, who: str) -> None:
        cells = self.cells_of(value)
        self.spare_states(cells, who, self.names[value], self.root.get(value, value))
        self.owner_of[value] = len(self.contents)
        self.contents.append(self.root.get(value, value))
        self.writers.append(value)
        self.owners[cells] = self.owner_of[value]

    def read(self, value: Value, step: int, node: Node) -> None:
        self.expect(value, f"step {step} ({node.label}) reads it", node)

    def expect(self, value: Value, use: str, node: Node | None = None) -> None:
        name = self.names.get(value, repr(value))
        if value not in self.owner_of:
            raise PlanError(
                f"value {name} is not computed when {use}{self.near(node)}", [name, use]
            )
        content = self.owner_of[value]
        held = self.owners[self.cells_of(value)]
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
        outputs = set(node.outputs)
        if self.shows(node):
            source = node.named_inputs()[node.op.views or ""]
            assert isinstance(source, Value), "a viewed input is one value"
            self.check_view(node, source)
            for value in node.outputs:
                self.owner_of[value] = self.shown(value, source)
            return
        if node.op.name in GATHERED and self.gather(node, step):
            return
        for value in node.outputs:
            self.check_piece(value)
            self.check_overlaps(node, value, outputs)
        workspace = self.plan.workspaces.get(node)
        self.check_workspace(node, workspace)
        if workspace is not None:
            region = (workspace.offset, workspace.offset + workspace.bytes)
            for value in node.inputs + node.outputs:
                self.check_apart(node, value, region)
            cells = self.cell_range(*region)
            self.spare_states(cells, f"the workspace of {node.label}", "workspace", None)
            self.owners[cells] = NOBODY
        for position, value in enumerate(node.outputs):
            name = node.op.output_name(position)
            if name in node.op.must_overwrite:
                state = node.named_inputs()[node.op.must_overwrite[name]]
                assert isinstance(state, Value), "a state input is one value"
                if state in updated:
                    names = [self.names[state], updated[state]]
                    raise PlanError(f"state {names[0]} is updated twice in one step", names)
                if self.spans[value] != self.spans[state]:
                    names = [self.names[state], self.names[value]]
                    raise PlanError(f"the update of {names[0]} is placed elsewhere", names)
                updated[state] = self.names[value]
                self.root[value] = state
            self.write(value, f"step {step} ({node.label})")

    def check_piece(self, value: Value) -> None:
        """What is no view is computed, at addresses that its elements can have, with strides that
        its kernel can write."""
        placement, name = self.plan.placements[value], self.names[value]
        if placement.how == "view" or not self.is_writable(value):
            raise PlanError(
                f"value {name} is placed as a view, with the strides {placement.strides}, but is "
                f"no view of what lies in buffer {placement.buffer}, and cannot be computed so",
                [name, f"buffer {placement.buffer}"],
            )
        if self.spans[value][0] % value.type.dtype.itemsize:
            raise PlanError(
                f"value {name} starts at {self.spans[value][0]}, no multiple of its elements' "
                f"{value.type.dtype.itemsize} bytes",
                [name],
            )

    def is_writable(self, value: Value) -> bool:
        """Whether a value has strides only where its kernel takes them, none of them over itself."""
        strides, node = self.plan.placements[value].strides, value.node
        if strides is None:
            return True
        if node is None:
            return False
        axes = outer_axes(value.type, strides)
        reach = size = value.type.dtype.itemsize
        for stride, n in sorted((s, n) for s, n in zip(strides, value.shape, strict=True) if n > 1):
            if stride < reach or stride % size:
                return False
            reach = stride * n
        return axes <= node.op.free_axes(node, node.op.output_name(value.index))

    def check_workspace(self, node: Node, workspace: Buffer | None) -> None:
        """A kernel has the scratch that it asks for."""
        types = node.op.workspace(node, self.plan.device, self.plan.strided)
        needed = sum(align(type.bytes, self.plan.alignment) for type in types)
        has = 0 if workspace is None else workspace.bytes
        if has < needed:
            raise PlanError(
                f"{node.label} needs a workspace of {needed} bytes and has {has}{self.near(node)}",
                [node.label],
            )

    def shown(self, value: Value, source: Value) -> Any:
        """The content of a view."""
        content = self.owner_of[source]
        if isinstance(content, int):
            return content
        of_source, of_value = (_numbers(self.cells_of(v)) for v in (source, value))
        return content[np.searchsorted(of_source, of_value)]

    def gather(self, node: Node, step: int) -> bool:
        """Put an output together whose parts lie inside it; False where none does.

        A part in its place stays what it is; what is copied belongs to the output.
        """
        (y,) = node.outputs
        array, start = self.outline(y)
        inside = []
        for value, part in zip(node.inputs, GATHERED[node.op.name](node, array), strict=True):
            stated = self.plan.placements[value]
            offset = part.__array_interface__["data"][0] - start
            steps = zip(value.shape, stated.strides or _row_major(value), part.strides, strict=True)
            if (
                (stated.buffer, stated.offset) == (self.plan.placements[y].buffer, offset)
                and all(n == 1 or a == b for n, a, b in steps)
                and value not in inside
            ):
                inside.append(value)
        if not inside:
            return False
        for value in set(node.inputs) - set(inside):
            if self.overlap(value, y):
                names = [self.names[value], self.names[y]]
                raise PlanError(
                    f"{node.label} copies {names[0]} into {names[1]}, but the two overlap"
                    f"{self.near(node)}",
                    names,
                )
        held = [(self.cells_of(value), self.owner_of[value]) for value in inside]
        self.write(y, f"step {step} ({node.label})")
        for cells, content in held:
            self.owners[cells] = content
        self.owner_of[y] = self.owners[self.cells_of(y)].copy()
        return True

    def overlap(self, a: Value, b: Value) -> bool:
        """Whether two values have a byte in common."""
        (low, high), (start, end) = self.spans[a], self.spans[b]
        if high <= start or end <= low:
            return False
        here, there = _numbers(self.cells_of(a)), _numbers(self.cells_of(b))
        return bool(np.intersect1d(here, there, assume_unique=True).size)

    def outline(self, value: Value) -> tuple[Any, int]:
        """An array like a value, never to be touched, and the address of its buffer's start."""
        place = self.plan.placements[value]
        array = np.ndarray(value.shape, value.type.dtype.numpy, OUTLINE, 0, (0,) * value.type.rank)
        strides = place.strides or _row_major(value)
        array = np.lib.stride_tricks.as_strided(array, value.shape, strides)
        return array, array.__array_interface__["data"][0] - place.offset

    def check_view(self, node: Node, source: Value) -> None:
        """A view lies where NumPy's own rules put it inside what it shows."""
        array, start = self.outline(source)
        try:
            parts = VIEWS[node.op.name](node, array)
        except ValueError:  # NumPy would have to copy
            names = [self.names[node.outputs[0]], self.names[source]]
            raise PlanError(f"{names[0]} cannot be a view of {names[1]}", names) from None
        for value, shown in zip(node.outputs, parts, strict=True):
            stated = self.plan.placements[value]
            offset = shown.__array_interface__["data"][0] - start
            has = stated.strides or _row_major(value)
            steps = zip(value.shape, has, shown.strides, strict=True)
            if stated.offset != offset or any(n > 1 and a != b for n, a, b in steps):
                names = [self.names[value], self.names[source]]
                raise PlanError(
                    f"view {names[0]} is stated at {stated.offset} with strides {has}, but lies at "
                    f"{offset} with strides {shown.strides} in {names[1]}",
                    names,
                )

    def shows(self, node: Node) -> bool:
        """Whether the outputs are views here, not copies."""
        if node.op.views is None:
            return False
        source = node.named_inputs()[node.op.views]
        assert isinstance(source, Value), "a viewed input is one value"
        buffer = self.plan.placements[source].buffer
        return all(
            self.plan.placements[value].buffer == buffer
            and self.plan.placements[value].how == "view"
            for value in node.outputs
        )

    def check_overlaps(self, node: Node, value: Value, outputs: set[Value]) -> None:
        """An output may lie over an operand only where the op says so, and exactly over it."""
        start, end = self.spans[value]
        position = node.outputs.index(value)
        name = node.op.output_name(position)
        allowed = set(node.op.may_overwrite.get(name, ()))
        allowed |= {node.op.must_overwrite[name]} if name in node.op.must_overwrite else set()
        for index, operand in enumerate(node.inputs):
            low, high = self.spans[operand]
            if self.overlap(operand, value):
                fits = (low, high) == (start, end) and operand.shape == value.shape
                fits &= self.strides(operand) == self.strides(value)
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
            if self.overlap(other, value):
                names = [self.names[other], self.names[value]]
                raise PlanError(
                    f"outputs {names[0]} and {names[1]} overlap{self.near(node)}", names
                )

    def check_apart(self, node: Node, value: Value, region: tuple[int, int]) -> None:
        low, high = self.spans[value]
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
