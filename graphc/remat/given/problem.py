"""A recomputation problem: nodes with costs and sizes, what they read, and a budget.

The file format is one JSON object::

    {"nodes": [{"id": 0, "cost": 1.5, "bytes": 4096, "inputs": [], "workspace": 0,
                "pinned": false}, ...],
     "outputs": [...], "fixed_bytes": 0, "budget": 123456}

Nodes stand in a topological order, each with one output. A step computes a node while its inputs
and its output are live, and its workspace beside them. Outputs are live at the end; a pinned node
is computed once and never dropped. Nodes that no output needs are left out. Without ``outputs``,
every node that nobody reads is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graphc.errors import ProblemError
from graphc.json_fields import JsonReader
from graphc.scheduling import problem as scheduling
from graphc.scheduling.problem import Run

LARGEST = 2**46
"""The largest size and cost: sums over a million nodes stay exact."""

MOST_BYTES = 2**60
"""All sizes together stay below, so that what is live is a whole number of 64 bits."""

READER = JsonReader(ProblemError)


@dataclass(frozen=True)
class Problem:
    """Nodes by position in a topological order; `ids` are their names outside.

    `cost` is in any unit, sizes are bytes. `inputs` are positions, each before its reader's.
    """

    ids: tuple[int, ...]
    cost: tuple[float, ...]
    bytes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    workspace: tuple[int, ...]
    pinned: frozenset[int]
    outputs: frozenset[int]
    fixed_bytes: int
    budget: int | None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def needed(self) -> tuple[int, ...]:
        """Positions that an output or a pinned node depends on, in order."""
        found = set(self.outputs | self.pinned)
        for node in reversed(range(len(self))):
            if node in found:
                found.update(self.inputs[node])
        return tuple(node for node in range(len(self)) if node in found)

    @cached_property
    def working_bytes(self) -> tuple[int, ...]:
        """What has to be live while a node is computed: inputs, output, workspace, fixed bytes."""
        return tuple(
            self.fixed_bytes
            + self.bytes[node]
            + self.workspace[node]
            + sum(self.bytes[source] for source in set(self.inputs[node]))
            for node in range(len(self))
        )

    @cached_property
    def bound_bytes(self) -> int:
        """No schedule can need less: the largest working set, or all that is live at the end."""
        at_end = self.fixed_bytes + sum(self.bytes[n] for n in self.outputs | self.pinned)
        return max([at_end, *(self.working_bytes[node] for node in self.needed)])

    @cached_property
    def steps(self) -> scheduling.Problem:
        """The needed nodes as steps whose forward pass turns around where the most is live."""
        index = {node: step for step, node in enumerate(self.needed)}
        live_out = frozenset(index[node] for node in self.outputs | self.pinned)
        inputs = (dict.fromkeys(self.inputs[node]) for node in self.needed)
        steps = scheduling.Problem(
            cost=tuple(self.cost[node] for node in self.needed),
            workspace=tuple(self.workspace[node] for node in self.needed),
            inputs=tuple(tuple(index[source] for source in sources) for sources in inputs),
            outputs=tuple((step,) for step in range(len(index))),
            overwrites=((),) * len(index),
            bytes=tuple(self.bytes[node] for node in self.needed),
            once=frozenset(index[node] for node in self.pinned),
            live_out=live_out,
            runs=(),
            fixed_bytes=self.fixed_bytes,
        )
        boundary = int(steps.levels(range(len(steps))).argmax())
        return replace(steps, runs=(Run(0, boundary, len(steps)),))


def read_problem(path: str) -> Problem:
    """Read a problem from a file; raises `ProblemError` that says where it is wrong."""
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProblemError(f"cannot read {path!r}: {reason}") from None
    found = READER.parse(content, repr(path))
    try:
        return parse_problem(found)
    except ProblemError as error:
        raise ProblemError(f"problem {path!r}: {error}") from None


def parse_problem(given: Any) -> Problem:
    """A problem from the object that a file holds; raises `ProblemError`."""
    found = READER.objects(given, "a problem", ("nodes",))
    nodes = READER.listed(found["nodes"], "nodes")
    if not nodes:
        READER.fail("nodes", "a problem has at least one node", nodes)
    return _Nodes(nodes).problem(found)


class _Nodes:
    """The nodes of a file, and the position of each by its id."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries: list[dict[str, Any]] = []
        self.position: dict[int, int] = {}
        for position, entry in enumerate(entries):
            where = f"nodes[{position}]"
            node = READER.objects(entry, where, ("id", "cost", "bytes"))
            if READER.whole(node["id"], f"{where}.id", below=LARGEST + 1) in self.position:
                READER.fail(f"{where}.id", "ids differ", node["id"])
            self.position[node["id"]] = position
            self.entries.append(node)

    def problem(self, given: dict[str, Any]) -> Problem:
        inputs = tuple(self.inputs(position) for position in range(len(self.entries)))
        budget = given.get("budget")
        for position, node in enumerate(self.entries):
            READER.number(node["cost"], f"nodes[{position}].cost", LARGEST)
        sizes, workspaces = tuple(self.sizes("bytes")), tuple(self.sizes("workspace"))
        if (total := sum(sizes) + sum(workspaces)) >= MOST_BYTES:
            READER.fail("nodes", f"all their bytes together are below {MOST_BYTES}", total)
        return Problem(
            ids=tuple(node["id"] for node in self.entries),
            cost=tuple(node["cost"] for node in self.entries),
            bytes=sizes,
            inputs=inputs,
            workspace=workspaces,
            pinned=frozenset(self.pinned()),
            outputs=self.outputs(given.get("outputs"), inputs),
            fixed_bytes=_size(given.get("fixed_bytes", 0), "fixed_bytes"),
            budget=None if budget is None else _size(budget, "budget"),
        )

    def sizes(self, key: str) -> Iterator[int]:
        for position, node in enumerate(self.entries):
            yield _size(node.get(key, 0), f"nodes[{position}].{key}")

    def pinned(self) -> Iterator[int]:
        for position, node in enumerate(self.entries):
            if READER.truth(node.get("pinned", False), f"nodes[{position}].pinned"):
                yield position

    def inputs(self, position: int) -> tuple[int, ...]:
        node, where = self.entries[position], f"nodes[{position}].inputs"
        sources = tuple(
            self.find(where, source) for source in READER.listed(node.get("inputs", []), where)
        )
        late = [source for source in sources if source >= position]
        if late:
            name, source = node["id"], self.entries[late[0]]["id"]
            raise ProblemError(
                f"{where}: node {name} reads node {source}, which does not stand before it; nodes "
                "stand in a topological order, so a cycle cannot be written down"
            )
        return sources

    def outputs(self, found: Any, inputs: Sequence[tuple[int, ...]]) -> frozenset[int]:
        if found is None or found == []:
            read = {source for sources in inputs for source in sources}
            return frozenset(set(range(len(self.entries))) - read)
        listed = READER.listed(found, "outputs")
        return frozenset(self.find("outputs", entry) for entry in listed)

    def find(self, where: str, given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given not in self.position:
            READER.fail(where, "the id of a node is expected", given)
        return self.position[given]


def _size(given: Any, where: str) -> int:
    return READER.whole(given, where, below=LARGEST + 1)
