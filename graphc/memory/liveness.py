"""Live ranges: the steps of the producer and of the last use of each value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphc.ir.graph import Graph, Value


@dataclass(frozen=True, slots=True)
class Liveness:
    """Live ranges of all values.

    `born` is the step of the producer, `dies` the step of the last consumer. Steps count nodes.
    Sources are born at step 0, before its node runs. Graph outputs die at `end`, one past the last
    step, since they are copied out after it.
    """

    born: dict[Value, int]
    dies: dict[Value, int]
    end: int


def liveness(graph: Graph) -> Liveness:
    """Return the live ranges of all values of a graph, in the order of its nodes."""
    end = len(graph.nodes)
    born: dict[Value, int] = dict.fromkeys(graph.sources, 0)
    for step, node in enumerate(graph.nodes):
        for value in node.outputs:
            born[value] = step
    dies = {value: steps[-1] if steps else born[value] for value, steps in graph.uses.items()}
    for value in graph.outputs.values():
        dies[value] = end
    return Liveness(born, dies, end)


def peak_bytes(lifetimes: Iterable[tuple[int, int, int]]) -> int:
    """Return the peak live bytes of live ranges, given as half-open (first, last, bytes)."""
    change: dict[int, int] = {}
    for first, last, size in lifetimes:
        change[first] = change.get(first, 0) + size
        change[last] = change.get(last, 0) - size
    live = most = 0
    for time in sorted(change):
        live += change[time]
        most = max(most, live)
    return most
