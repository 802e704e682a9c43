"""Which integers number rows or classes, and where they are checked.

Those that are fed are checked before a step's first node, also behind views and copies, which leave
every number as it is. Constants are checked once, when a program is made. Those that the graph
computes are checked where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import FeedError
from graphc.ir.contents import Contents
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ops.choice import Cast
from graphc.ops.shape import Copy

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class FedRange:
    """Elements of an input that must lie in [0, limit), as the op of `reader` looks up with them.

    `positions` are those of the flattened input, None for all of it; `chosen` is room for them.
    """

    limit: int
    reader: Node
    positions: Array | None
    chosen: Array | None

    def check(self, source: Input | State, given: Array) -> None:
        """Raise `FeedError` unless what is fed, or a constant, lies in the range."""
        if self.positions is not None:
            flat = given.reshape(-1)
            given = np.take(flat, self.positions, out=self.chosen, mode="clip")
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= self.limit:
            kind = "input" if isinstance(source, Input) else "constant"
            raise FeedError(
                f"{kind} {source.name!r} holds numbers from {low} to {high}; {self.reader.label} "
                f"reads them as rows or classes, which must lie in [0, {self.limit}); give numbers "
                "in that range"
            )


@dataclass(frozen=True, slots=True)
class ComputedRange:
    """A value that must lie in [0, limit) where `reader` reads it."""

    value: Value
    limit: int
    reader: Node

    def check(self, name: str, array: Array) -> None:
        """Raise `FeedError` unless the array, which the graph calls `name`, lies in the range."""
        low, high = int(np.minimum.reduce(array, None)), int(np.maximum.reduce(array, None))
        if low < 0 or high >= self.limit:
            raise FeedError(
                f"{name}, which the graph computes, holds numbers from {low} to {high}; "
                f"{self.reader.label} reads them as rows or classes, which must lie in "
                f"[0, {self.limit}); check what they are computed from"
            )


class IndexRanges:
    """The ranges of a graph's integers: `fed` ones by input, `computed` ones by first reader."""

    def __init__(self, graph: Graph) -> None:
        self.computed: dict[Node, list[ComputedRange]] = {}
        self._positions = _fed_positions(graph)
        found: dict[Input | State, dict[int, list[tuple[Node, Array]]]] = {}
        checked: dict[Value, int] = {}
        for node in graph.nodes:
            for value, limit in _ranges_of(node):
                original = _original(value)
                if limit >= checked.get(original, limit + 1):
                    continue
                checked[original] = limit
                if value in self._positions:
                    source, positions = self._positions[value]
                    found.setdefault(source, {}).setdefault(limit, []).append((node, positions))
                else:
                    read = ComputedRange(value, limit, node)
                    self.computed.setdefault(node, []).append(read)
        self.fed: dict[Input, list[FedRange]] = {}
        for source, ranges in found.items():
            if isinstance(source, Input):
                self.fed[source] = _united(source, ranges)
            elif isinstance(source.initial, Contents):
                for allowed in _united(source, ranges):
                    allowed.check(source, source.initial.array)


def _ranges_of(node: Node) -> list[tuple[Value, int]]:
    """The integers that a node looks up with, and what they must lie below."""
    op, limit = node.op, node.op.index_limit(node)
    if limit is None:
        return []
    return [
        (value, limit)
        for index, value in enumerate(node.inputs)
        if value.type.dtype.kind == "int"
        and value.type.elements
        and (not op.indices or op.input_name(index) in op.indices)
    ]


def _original(value: Value) -> Value:
    """What a recomputed value is a copy of; it has the same numbers."""
    node = value.node
    return value if node is None or node.copy_of is None else node.copy_of.outputs[value.index]


def _fed_positions(graph: Graph) -> dict[Value, tuple[Input | State, Array]]:
    """Integers that are fed or constants, as they are or behind views and copies: which elements
    of which input or constant they are."""
    constants = (state for state in graph.states if state.role == "constant")
    found: dict[Value, tuple[Input | State, Array]] = {
        source: (source, np.arange(source.type.elements).reshape(source.shape))
        for source in (*graph.inputs, *constants)
        if source.type.dtype.kind == "int"
    }
    for node in graph.nodes:
        fed = found.get(node.inputs[0]) if node.inputs else None
        if fed is None:
            continue
        source, positions = fed
        if node.op.views is not None:
            shown = node.op.numpy_views(node, np.asarray(positions, order="C"))
            found.update((v, (source, p)) for v, p in zip(node.outputs, shown, strict=True))
        elif _keeps_numbers(node):
            found[node.output] = fed
    return found


def _keeps_numbers(node: Node) -> bool:
    """Whether the output has the numbers of the only input, integer by integer."""
    if not isinstance(node.op, Copy | Cast):
        return False
    given, kept = node.inputs[0].type.dtype, node.output.type.dtype
    return kept.kind == "int" and kept.itemsize >= given.itemsize


def _united(
    source: Input | State, ranges: Mapping[int, list[tuple[Node, Array]]]
) -> list[FedRange]:
    """One range a limit, from the least limit on, of positions that none before has."""
    covered = np.zeros(source.type.elements, np.bool_)
    united = []
    for limit in sorted(ranges):
        fresh = np.zeros_like(covered)
        for _, positions in ranges[limit]:
            fresh[positions.reshape(-1)] = True
        fresh &= ~covered
        covered |= fresh
        reader = ranges[limit][0][0]
        if fresh.all():
            united.append(FedRange(limit, reader, None, None))
        elif fresh.any():
            places = np.flatnonzero(fresh)
            chosen = np.empty(places.size, source.type.dtype.numpy)
            united.append(FedRange(limit, reader, places, chosen))
    return united


def index_limits(graph: Graph) -> dict[Value, int]:
    """Limits of integer values, handed back to all integers that they were computed from."""
    limits: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        found = [limits[value] for value in node.outputs if value in limits]
        own = dict(_ranges_of(node))
        for value in node.inputs:
            if value.type.dtype.kind == "int" and (found or value in own):
                both = [*found, own.get(value), limits.get(value)]
                limits[value] = min(limit for limit in both if limit is not None)
    return limits
