"""A recomputation problem given as data: nodes with costs and sizes, edges, and a budget.

The file format is one JSON object::

    {"nodes": [{"id": 0, "cost": 1.5, "bytes": 4096, "inputs": [], "workspace": 0,
                "pinned": false, "overwrites": [], "after": []}, ...],
     "outputs": [...], "fixed_bytes": 0, "budget": 123456, "boundary": 7,
     "link": {"to_host": 2.5e10, "to_device": 2.5e10, "latency": 1e-5, "host_bytes": 1000000000,
              "both_ways": true}}

Nodes are listed in a topological order. A node may have several outputs: `bytes` is then a list,
and `[3, 1]` names the second output of node 3 in `inputs` and `outputs`. Computing a node needs its
inputs, its outputs and its workspace at the same time. An entry `[k, i]` of `overwrites` lets
output k take the bytes of input i, of equal size, if this is the last use of the input. `after`
lists nodes that must run first, although no data says so.

Outputs are live at the end; a pinned node is computed once and its outputs are never evicted. With
a forward/backward `boundary`, the node of that id and all later ones are computed once. Nodes that
no output and no pinned node needs are left out. Without ``outputs``, the outputs are those of all
nodes that no node reads. `inputs` and the keys after it may be omitted. Bytes and costs are at most
2^46; `budget` and `host_bytes` may also be texts such as "7GiB". Nodes and the problem may have a
``name``, which is ignored. Other keys are errors.

With a `link`, values may also be copied to host memory and fetched again. Costs are then seconds.
`to_host` and `to_device` are bytes per second, `latency` the seconds that each copy takes besides,
by default 0. `host_bytes` limits the bytes in host memory, by default not at all. Without
`both_ways`, which is true by default, only one direction runs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

from graphc.errors import ProblemError, quoted
from graphc.json_fields import JsonReader
from graphc.planner.given.link import parse_limit, parse_link
from graphc.planner.host_link import HostLink
from graphc.planner.order import Arc
from graphc.planner.problem import Problem, Run
from graphc.planner.recompute.lower_bound import least_bytes

LARGEST = 2**46
"""The largest size in bytes and the largest cost; sums over a million nodes stay exact."""

MOST_BYTES = 2**60
"""Upper limit of the sum of all sizes, so that live bytes fit into 64 bits."""

READER = JsonReader(ProblemError)

OPTIONAL = ("inputs", "workspace", "pinned", "overwrites", "after", "name")
"""The keys that a node may have."""


@dataclass(frozen=True, kw_only=True)
class GivenProblem(Problem):
    """A problem given as data, without the nodes that no output and no pinned node needs.

    Steps are numbered in topological order, values in the order of producers. `ids` are the names
    of steps in the file. By step, `after` are the steps that must run first, although no data says
    so; a schedule whose first occurrences keep the given order respects it. Steps in `pinned` run
    once, and their values are live to the end.
    """

    ids: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    pinned: frozenset[int] = frozenset()
    budget: int | None = None
    link: HostLink | None = None

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For each step, the steps whose values it reads, without duplicates."""
        return tuple(
            tuple(dict.fromkeys(self.producer[value] for value in inputs)) for inputs in self.inputs
        )

    def name(self, value: int) -> str:
        """Return the name of a value in messages: its node's id, with an output index if there are
        several."""
        node = self.producer[value]
        values = self.outputs[node]
        index = f"[{value - values[0]}]" if len(values) > 1 else ""
        return f"{self.ids[node]}{index}"

    @cached_property
    def bound_bytes(self) -> int:
        """A lower bound on peak bytes."""
        return least_bytes(self)

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """Pairs (a, b) of steps such that `after` requires a to run before b."""
        return tuple((first, step) for step in self.order for first in self.after[step])


def read_problem(path: str) -> GivenProblem:
    """Read a problem from a file; raises `ProblemError`, which names the invalid entry."""
    try:
        content = Path(path).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProblemError(f"cannot read {path!r}: {reason}") from None
    found = READER.parse(content, repr(path))
    try:
        return parse_problem(found)
    except ProblemError as error:
        raise ProblemError(f"problem {path!r}: {error}") from None


def parse_problem(given: Any) -> GivenProblem:
    """Return the problem that the object of a JSON file describes; raises `ProblemError`."""
    optional = ("outputs", "fixed_bytes", "budget", "boundary", "link", "name")
    found = READER.record(given, ("nodes",), "a problem", optional)
    nodes = READER.listed(found["nodes"], "nodes")
    if not nodes:
        READER.fail("nodes", "a problem needs at least one node", nodes)
    return _Nodes(nodes).problem(found)


class _Nodes:
    """Parser of the nodes of a file; holds their positions by id and the numbers of their
    values."""

    def __init__(self, entries: Sequence[Any]) -> None:
        self.entries: list[dict[str, Any]] = []
        self.position: dict[int, int] = {}
        self.values: list[tuple[int, ...]] = []
        self.bytes: list[int] = []
        self.producer: list[int] = []
        for position, entry in enumerate(entries):
            where = f"nodes[{position}]"
            node = READER.record(entry, ("id", "cost", "bytes"), where, OPTIONAL)
            if READER.whole(node["id"], f"{where}.id", below=LARGEST + 1) in self.position:
                READER.fail(f"{where}.id", "ids must be unique", node["id"])
            READER.number(node["cost"], f"{where}.cost", LARGEST)
            self.position[node["id"]] = position
            self.entries.append(node)
            first = len(self.bytes)
            self.bytes += _sizes(node["bytes"], f"{where}.bytes")
            self.values.append(tuple(range(first, len(self.bytes))))
            self.producer += [position] * len(self.values[-1])

    def problem(self, given: dict[str, Any]) -> GivenProblem:
        count = range(len(self.entries))
        inputs = tuple(map(self.inputs, count))
        workspaces = [
            _size(node.get("workspace", 0), f"nodes[{position}].workspace")
            for position, node in enumerate(self.entries)
        ]
        if (total := sum(self.bytes) + sum(workspaces)) >= MOST_BYTES:
            READER.fail("nodes", f"the sum of all bytes must be below {MOST_BYTES}", total)
        overwrites = [self.overwrites(position, inputs[position]) for position in count]
        after = list(map(self.after, count))
        pinned = frozenset(self.pinned())
        live_out = self.outputs(given.get("outputs"), inputs)
        live_out |= {value for node in pinned for value in self.values[node]}
        fixed_bytes = _size(given.get("fixed_bytes", 0), "fixed_bytes")
        boundary, link = given.get("boundary"), given.get("link")
        limit = parse_limit(given.get("budget"), "budget", LARGEST)
        start = None if boundary is None else self.find("boundary", boundary)
        # Nodes and values are renumbered without those that nothing needs.
        needed = self.needed({self.producer[value] for value in live_out} | pinned, inputs, after)
        if not needed:
            READER.fail("nodes", "expected at least one output or pinned node", self.entries[0])
        step = {node: number for number, node in enumerate(needed)}
        values = [value for node in needed for value in self.values[node]]
        number = {value: index for index, value in enumerate(values)}
        runs_once = pinned.union(() if start is None else range(start, len(count)))
        found = GivenProblem(
            ids=tuple(self.entries[node]["id"] for node in needed),
            cost=tuple(self.entries[node]["cost"] for node in needed),
            workspace=tuple(workspaces[node] for node in needed),
            inputs=tuple(
                tuple(number[value] for value in dict.fromkeys(inputs[node])) for node in needed
            ),
            outputs=tuple(tuple(number[value] for value in self.values[node]) for node in needed),
            overwrites=tuple(
                tuple((number[output], number[operand]) for output, operand in overwrites[node])
                for node in needed
            ),
            bytes=tuple(self.bytes[value] for value in values),
            once=frozenset(step[node] for node in needed if node in runs_once),
            live_out=frozenset(number[value] for value in live_out),
            runs=(),
            fixed_bytes=fixed_bytes,
            after=tuple(tuple(step[first] for first in after[node]) for node in needed),
            pinned=frozenset(step[node] for node in pinned),
            budget=limit,
            link=None if link is None else parse_link(link, LARGEST),
        )
        if start is None:
            boundary = int(found.levels(found.order).argmax())
        else:
            boundary = sum(node < start for node in needed)
        return replace(found, runs=(Run(0, boundary, len(found)),))

    def needed(
        self, wanted: set[int], inputs: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return the nodes that the `wanted` ones depend on, by data or by `after`, with them."""
        for node in reversed(range(len(self.entries))):
            if node in wanted:
                wanted.update((self.producer[value] for value in inputs[node]), after[node])
        return sorted(wanted)

    def pinned(self) -> Iterator[int]:
        for position, node in enumerate(self.entries):
            if READER.truth(node.get("pinned", False), f"nodes[{position}].pinned"):
                yield position

    def inputs(self, position: int) -> tuple[int, ...]:
        where = f"nodes[{position}].inputs"
        listed = READER.listed(self.entries[position].get("inputs", []), where)
        found = tuple(self.value(where, entry) for entry in listed)
        for value in found:
            self._check_order(where, position, "reads", self.producer[value])
        return found

    def after(self, position: int) -> tuple[int, ...]:
        where = f"nodes[{position}].after"
        listed = READER.listed(self.entries[position].get("after", []), where)
        found = tuple(self.find(where, entry) for entry in listed)
        for first in found:
            self._check_order(where, position, "runs after", first)
        return found

    def _check_order(self, where: str, position: int, verb: str, first: int) -> None:
        if first >= position:
            name, other = self.entries[position]["id"], self.entries[first]["id"]
            raise ProblemError(
                f"{where}: node {name} {verb} node {other}, which is not listed before it; list "
                "nodes in topological order, without cycles"
            )

    def overwrites(self, position: int, inputs: Sequence[int]) -> tuple[tuple[int, int], ...]:
        where = f"nodes[{position}].overwrites"
        pairs = []
        for entry in READER.listed(self.entries[position].get("overwrites", []), where):
            if not isinstance(entry, list) or len(entry) != 2:
                READER.fail(where, "expected pairs [output, input]", entry)
            output = READER.whole(entry[0], where, below=len(self.values[position]))
            operand = READER.whole(entry[1], where, below=len(inputs))
            pair = self.values[position][output], inputs[operand]
            if self.bytes[pair[0]] != self.bytes[pair[1]]:
                READER.fail(where, "an output can overwrite only an input of equal size", entry)
            pairs.append(pair)
        return tuple(pairs)

    def outputs(self, found: Any, inputs: Sequence[tuple[int, ...]]) -> frozenset[int]:
        if found is None:
            read = {value for values in inputs for value in values}
            unread = (values for values in self.values if read.isdisjoint(values))
            return frozenset(value for values in unread for value in values)
        listed = READER.listed(found, "outputs")
        return frozenset(self.value("outputs", entry) for entry in listed)

    def value(self, where: str, given: Any) -> int:
        """Return the number of a value, given as a node id or as a pair [id, output]."""
        if isinstance(given, list) and len(given) == 2:
            values = self.values[self.find(where, given[0])]
            return values[READER.whole(given[1], where, below=len(values))]
        values = self.values[self.find(where, given)]
        if len(values) != 1:
            count = f"node {given} has {len(values)} outputs; select one, as in [{given}, 0]"
            READER.fail(where, count, given)
        return values[0]

    def find(self, where: str, given: Any) -> int:
        return node_of(self.position, where, given)


def node_of(position: Mapping[int, int], where: str, given: Any) -> int:
    """Return the position of a node by its id; raises `ProblemError`."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        READER.fail(where, "expected the id of a node", given)
    if given not in position:
        raise ProblemError(f"{where}: no node has the id {quoted(given)}")
    return position[int(given)]


def _sizes(given: Any, where: str) -> list[int]:
    """Return the bytes of each output of a node, given as a list, or as a number for one output."""
    return [_size(each, where) for each in (given if isinstance(given, list) else [given])]


def _size(given: Any, where: str) -> int:
    return READER.whole(given, where, below=LARGEST + 1)
