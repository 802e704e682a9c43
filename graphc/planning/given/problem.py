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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from graphc.errors import ProblemError
from graphc.planning.steps import Run, Steps

LARGEST = 2**46
"""The largest size and cost: sums over a million nodes stay exact."""


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
    def steps(self) -> Steps:
        """The needed nodes as steps whose forward pass turns around where the most is live."""
        index = {node: step for step, node in enumerate(self.needed)}
        held = frozenset(index[node] for node in self.outputs | self.pinned)
        inputs = (dict.fromkeys(self.inputs[node]) for node in self.needed)
        steps = Steps(
            cost=tuple(self.cost[node] for node in self.needed),
            workspace=tuple(self.workspace[node] for node in self.needed),
            inputs=tuple(tuple(index[source] for source in sources) for sources in inputs),
            outputs=tuple((step,) for step in range(len(index))),
            overwrites=((),) * len(index),
            bytes=tuple(self.bytes[node] for node in self.needed),
            once=frozenset(index[node] for node in self.pinned),
            held=held,
            runs=(),
            fixed_bytes=self.fixed_bytes,
        )
        levels = steps.profile(range(len(steps)), held)
        return replace(steps, runs=(Run(0, levels.index(max(levels)), len(steps)),))


def read_problem(path: str) -> Problem:
    """Read a problem from a file; raises `ProblemError` that says where it is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ProblemError(f"cannot read {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProblemError(f"{path!r} is not a text file") from None
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path!r} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError):
        raise ProblemError(
            f"{path!r} is nested too deeply, or has numbers too long, to be a problem"
        ) from None
    return parse_problem(given)


def parse_problem(given: Any) -> Problem:
    """A problem from the object that a file holds; raises `ProblemError`."""
    if not isinstance(given, Mapping) or not isinstance(given.get("nodes"), list):
        raise ProblemError("a problem is an object with a list under 'nodes'")
    return _Reader(given["nodes"]).run(given)


class _Reader:
    def __init__(self, nodes: Sequence[Any]) -> None:
        self.nodes = nodes
        self.position: dict[int, int] = {}

    def fail(self, where: str, rule: str, found: Any) -> NoReturn:
        raise ProblemError(f"{where}: {rule}, got {found!r}")

    def number(self, where: str, found: Any, whole: bool) -> Any:
        """A number from 0 up to `LARGEST`."""
        is_number = isinstance(found, int if whole else int | float) and not isinstance(found, bool)
        if not is_number or not 0 <= found <= LARGEST:
            self.fail(where, f"expected a {'whole ' if whole else ''}number from 0 to 2**46", found)
        return found

    def run(self, given: Mapping[str, Any]) -> Problem:
        if not self.nodes:
            raise ProblemError("a problem has at least one node")
        for position, node in enumerate(self.nodes):
            where = f"nodes[{position}]"
            if not isinstance(node, Mapping):
                self.fail(where, "a node is an object", node)
            missing = [key for key in ("id", "cost", "bytes") if key not in node]
            if missing:
                self.fail(where, f"a node has {', '.join(missing)}", dict(node))
            if self.number(f"{where}.id", node["id"], whole=True) in self.position:
                self.fail(f"{where}.id", "ids differ", node["id"])
            self.position[node["id"]] = position
        inputs = tuple(self.inputs(position) for position in range(len(self.nodes)))
        outputs = self.outputs(given.get("outputs"), inputs)
        budget = given.get("budget")
        return Problem(
            ids=tuple(node["id"] for node in self.nodes),
            cost=tuple(self.numbers("cost", whole=False)),
            bytes=tuple(self.numbers("bytes", whole=True)),
            inputs=inputs,
            workspace=tuple(self.numbers("workspace", whole=True)),
            pinned=frozenset(p for p, node in enumerate(self.nodes) if self.is_pinned(p, node)),
            outputs=outputs,
            fixed_bytes=self.number("fixed_bytes", given.get("fixed_bytes", 0), whole=True),
            budget=None if budget is None else self.number("budget", budget, whole=True),
        )

    def numbers(self, key: str, whole: bool) -> list[Any]:
        return [
            self.number(f"nodes[{position}].{key}", node.get(key, 0), whole)
            for position, node in enumerate(self.nodes)
        ]

    def is_pinned(self, position: int, node: Mapping[str, Any]) -> bool:
        found = node.get("pinned", False)
        if not isinstance(found, bool):
            self.fail(f"nodes[{position}].pinned", "expected true or false", found)
        return found

    def inputs(self, position: int) -> tuple[int, ...]:
        where, found = f"nodes[{position}].inputs", self.nodes[position].get("inputs", [])
        if not isinstance(found, list):
            self.fail(where, "expected a list of ids", found)
        sources = tuple(self.find(where, source) for source in found)
        late = [source for source in sources if source >= position]
        if late:
            name, source = self.nodes[position]["id"], self.nodes[late[0]]["id"]
            raise ProblemError(
                f"{where}: node {name} reads node {source}, which does not stand before it; nodes "
                "stand in a topological order, so a cycle cannot be written down"
            )
        return sources

    def outputs(self, found: Any, inputs: Sequence[tuple[int, ...]]) -> frozenset[int]:
        if found is None or found == []:
            read = {source for sources in inputs for source in sources}
            return frozenset(set(range(len(self.nodes))) - read)
        if not isinstance(found, list):
            self.fail("outputs", "expected a list of ids", found)
        return frozenset(self.find("outputs", entry) for entry in found)

    def find(self, where: str, given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given not in self.position:
            self.fail(where, "expected the id of a node", given)
        return self.position[given]
