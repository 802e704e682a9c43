"""Bounds checks of integers that index rows or classes.

Fed integers are checked before the first node of a step, also if an op reads them through views and
copies, which preserve every number. Constants are checked once, when a program is made. Integers
that the graph computes are checked at their first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import FeedError
from graphc.ir.contents import Contents
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ops.choice import Cast
from graphc.ops.shape import Copy
from graphc.runtime.padding import Padded

Array = np.ndarray[Any, np.dtype[Any]]


ALL = -1
"""A value of `part` that selects all elements along the last axis."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The integers in `[low, limit)`, and `ignored` unless it is None."""

    low: int
    limit: int
    ignored: int | None = None

    def __str__(self) -> str:
        extra = "" if self.ignored is None else f" or be {self.ignored}"
        return f"[{self.low}, {self.limit}){extra}"

    def contains(self, other: Bounds) -> bool:
        """Return True if these bounds contain every number of the other bounds."""
        extra = other.ignored
        spared = extra is None or extra == self.ignored or self.low <= extra < self.limit
        return self.low <= other.low and other.limit <= self.limit and spared


@dataclass(frozen=True, slots=True)
class Range:
    """The bounds of integers that an op uses as indices.

    `counted` is scratch for the mask of indices that are not ignored.
    """

    bounds: Bounds
    counted: Array | None

    @classmethod
    def of(cls, bounds: Bounds, elements: int) -> Range:
        """Return a range with scratch for `elements` numbers."""
        return cls(bounds, None if bounds.ignored is None else np.empty(elements, np.bool_))

    def broken_by(self, given: Array) -> str | None:
        """Return the least and the largest number as text; None if all are within the bounds."""
        counted: Any = True
        bounds = self.bounds
        if bounds.ignored is not None and self.counted is not None:
            counted = self.counted[: given.size].reshape(given.shape)
            np.not_equal(given, bounds.ignored, out=counted)
        # The initial value 0 is within every range.
        low = int(np.minimum.reduce(given, None, initial=0, where=counted))
        high = int(np.maximum.reduce(given, None, initial=0, where=counted))
        if low >= bounds.low and high < bounds.limit:
            return None
        return f"{given.min()} to {given.max()}"


@dataclass(frozen=True, slots=True)
class FedRange:
    """Elements of an input that must be in a range, because node `reader` uses them as indices.

    `positions` are their positions in the flattened input, None for all elements. `chosen` is
    scratch for a copy of these elements.
    """

    range: Range
    reader: Node
    positions: Array | None
    chosen: Array | None

    def check(self, source: Input | State, given: Array | Padded) -> None:
        """Raise `FeedError` unless the array of an input or a constant is in the range."""
        if self.positions is not None:
            whole = given.whole(source.shape) if isinstance(given, Padded) else given
            given = np.take(whole.reshape(-1), self.positions, out=self.chosen, mode="clip")
        elif isinstance(given, Padded):
            given = given.corner
        broken = self.range.broken_by(given)
        if broken is not None:
            kind = "input" if isinstance(source, Input) else "constant"
            raise FeedError(
                f"{kind} {source.name!r} contains numbers from {broken}, but {self.reader.label} "
                f"uses them as indices, which must be in {self.range.bounds}; give numbers in "
                "that range"
            )


@dataclass(frozen=True, slots=True)
class ComputedRange:
    """A computed value that must be in a range, because node `reader` uses it as indices.

    `part` is an index along its last axis, or `ALL`.
    """

    value: Value
    part: int
    range: Range
    reader: Node

    def check(self, name: str, array: Array) -> None:
        """Raise `FeedError` unless all elements are in the range.

        `name` is the value's name in the graph.
        """
        broken = self.range.broken_by(_part(array, self.part))
        if broken is not None:
            raise FeedError(
                f"the computed value {name} contains numbers from {broken}, but "
                f"{self.reader.label} uses them as indices, which must be in {self.range.bounds}; "
                "check the inputs of the computation"
            )


class IndexRanges:
    """The ranges of all integers of a graph that are used as indices.

    `fed` has the ranges of each input or constant; `computed` has those of computed values, by the
    first node that uses them.
    """

    def __init__(self, graph: Graph) -> None:
        self.computed: dict[Node, list[ComputedRange]] = {}
        self._positions = _fed_positions(graph)
        found: dict[Input | State, Readers] = {}
        checked: dict[tuple[Value, int], list[Bounds]] = {}
        for node in graph.nodes:
            for value, part, bounds in _ranges_of(node):
                known = checked.setdefault((_original(value), part), _known(value))
                if any(map(bounds.contains, known)):
                    continue
                known.append(bounds)
                if value in self._positions:
                    source, positions = self._positions[value]
                    readers = found.setdefault(source, {})
                    readers.setdefault(bounds, []).append((node, _part(positions, part)))
                else:
                    count = value.type.elements // (1 if part == ALL else value.shape[-1])
                    read = ComputedRange(value, part, Range.of(bounds, count), node)
                    self.computed.setdefault(node, []).append(read)
        self.fed: dict[Input, list[FedRange]] = {}
        for source, readers in found.items():
            if isinstance(source, Input):
                self.fed[source] = _united(source, readers)
            elif isinstance(source.initial, Contents):
                for allowed in _united(source, readers):
                    allowed.check(source, source.initial.array)


def _part(array: Array, part: int) -> Array:
    """Return the elements at one index of the last axis, or all of them."""
    return array if part == ALL else array[..., part]


def _known(value: Value) -> list[Bounds]:
    """Return the bounds of a value's numbers, if its producer guarantees any.

    Views and copies are followed back to the value that they repeat.
    """
    while (node := value.node) is not None and (_shows_numbers(node) or _keeps_numbers(node)):
        value = node.inputs[0]
    if node is None or value.type.dtype.kind != "int":
        return []
    limit, limited = node.op.output_limit(node), node.op.limited
    is_limited = not limited or node.op.output_name(value.index) in limited
    return [Bounds(0, limit)] if limit is not None and is_limited else []


def _ranges_of(node: Node) -> list[tuple[Value, int, Bounds]]:
    """Yield each operand that a node uses as indices, the part of its last axis, and its bounds."""
    op, limits = node.op, node.op.index_limit(node)
    if limits is None:
        return []
    parts = enumerate(limits) if isinstance(limits, tuple) else ((ALL, limits),)
    ignored = op.ignored_index(node)
    bounds = [(part, Bounds(-n if op.counts_from_end else 0, n, ignored)) for part, n in parts]
    return [
        (value, *each)
        for index, value in enumerate(node.inputs)
        if value.type.dtype.kind == "int"
        and value.type.elements
        and (not op.indices or op.input_name(index) in op.indices)
        for each in bounds
    ]


def _original(value: Value) -> Value:
    """Return the value that a recomputed value repeats, or the value itself.

    Both have the same numbers.
    """
    node = value.node
    return value if node is None or node.copy_of is None else node.copy_of.outputs[value.index]


def _fed_positions(graph: Graph) -> dict[Value, tuple[Input | State, Array]]:
    """Map integer values to an input or constant, and the positions of their elements in it.

    The values are integer inputs and constants, and views and copies of them.
    """
    constants = (state for state in graph.states if state.role == "constant")
    sources: list[Input | State] = [*graph.inputs, *constants]
    found: dict[Value, tuple[Input | State, Array]] = {
        source: (source, np.arange(source.type.elements).reshape(source.shape))
        for source in sources
        if source.type.dtype.kind == "int"
    }
    for node in graph.nodes:
        fed = found.get(node.inputs[0]) if node.inputs else None
        if fed is None:
            continue
        source, positions = fed
        if _shows_numbers(node):
            shown = node.op.numpy_views(node, np.asarray(positions, order="C"))
            found.update((v, (source, p)) for v, p in zip(node.outputs, shown, strict=True))
        elif _keeps_numbers(node):
            found[node.output] = fed
    return found


def _shows_numbers(node: Node) -> bool:
    """Return True if the outputs of a node are views of its first input, with the same dtype."""
    return node.op.views is not None and all(
        value.type.dtype == node.inputs[0].type.dtype for value in node.outputs
    )


def _keeps_numbers(node: Node) -> bool:
    """Return True if the output of a node has the same integers as its first input."""
    if not isinstance(node.op, Copy | Cast) and node.host_copy is None:
        return False
    given, kept = node.inputs[0].type.dtype, node.output.type.dtype
    return given.kind == kept.kind == "int" and kept.itemsize >= given.itemsize


Readers = dict[Bounds, list[tuple[Node, Array]]]
"""Bounds → (node, positions) for each node whose indices have these bounds: the positions of the
input that it reads."""


def _order(bounds: Bounds) -> tuple[bool, int, int, int]:
    reach = bounds.limit - bounds.low
    return bounds.ignored is not None, reach, bounds.low, bounds.ignored or 0


def _united(source: Input | State, readers: Readers) -> list[FedRange]:
    """Merge the checks of an input into one `FedRange` for each distinct bounds, narrowest first.

    A position is checked once: wider bounds skip it if bounds that they contain already cover it.
    Bounds without an ignored index come first.
    """
    covered: dict[Bounds, Array] = {}
    united = []
    for bounds in sorted(readers, key=_order):
        fresh = np.zeros(source.type.elements, np.bool_)
        for _, positions in readers[bounds]:
            fresh[positions.reshape(-1)] = True
        for inside, elsewhere in covered.items():
            if bounds.contains(inside):
                fresh &= ~elsewhere
        covered[bounds] = fresh
        reader = readers[bounds][0][0]
        places = np.flatnonzero(fresh)
        range = Range.of(bounds, places.size)
        if fresh.all():
            united.append(FedRange(range, reader, None, None))
        elif fresh.any():
            chosen = np.empty(places.size, source.type.dtype.numpy)
            united.append(FedRange(range, reader, places, chosen))
    return united


def index_limits(graph: Graph) -> dict[Value, int]:
    """Return the exclusive upper limit of each integer value on which indices depend.

    Limits are propagated backwards from the ops that use integers as indices.
    """
    limits: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        found = [limits[value] for value in node.outputs if value in limits]
        own: dict[Value, int] = {}
        for value, _, bounds in _ranges_of(node):
            own[value] = min(bounds.limit, own.get(value, bounds.limit))
        for value in node.inputs:
            if value.type.dtype.kind == "int" and (found or value in own):
                both = [*found, own.get(value), limits.get(value)]
                limits[value] = min(limit for limit in both if limit is not None)
    return limits
