"""Alias analysis of a plan: all uses of a value's bytes, through views and concatenations.

A view shares the bytes of the viewed value. A concatenation shares the bytes of parts that are
computed in place. A value is therefore live until the last use of any of its aliases.
"""

from __future__ import annotations

from typing import NamedTuple

from graphc.ir.graph import State, Value
from graphc.plans.memory_plan import MemoryPlan

BEHIND = ("gradient", "mirror")
"""Phases after the forward pass, whose nodes use the values that it saves."""


class Reader(NamedTuple):
    """A use of a value: the step that reads it, and the value itself or the alias that is read."""

    step: int
    value: Value


class Aliases:
    """The aliases of every value of a plan: its views, and the concatenations that contain it or
    the value of which it is a view."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.graph = plan.graph
        self._placements = plan.placements
        self._of: dict[Value, list[Value]] = {}
        for value, place in plan.placements.items():
            if place.over is not None and place.how == "view":
                self._of.setdefault(place.over, []).append(value)
                source = place.over
                while plan.placements[source].how == "view":
                    above = plan.placements[source].over
                    assert above is not None, "a view has a source"
                    source = above
                whole = plan.placements[source].over
                if plan.placements[source].how == "part" and whole is not None:
                    self._of.setdefault(value, []).append(whole)
            elif place.over is not None and place.how == "part":
                self._of.setdefault(value, []).append(place.over)

    def all_of(self, value: Value) -> list[Value]:
        """Return a value and all of its aliases, including aliases of aliases."""
        found = dict.fromkeys((value,))
        waiting = [value]
        while waiting:
            for alias in self._of.get(waiting.pop(), ()):
                if alias not in found:
                    found[alias] = None
                    waiting.append(alias)
        return list(found)

    def readers(self, value: Value) -> list[Reader]:
        """Return all uses of the value's bytes, in order of steps."""
        uses = self.graph.uses
        found = [Reader(step, alias) for alias in self.all_of(value) for step in uses[alias]]
        return sorted(found, key=lambda reader: reader.step)

    def output_names(self, value: Value) -> list[str]:
        """Return the names of the program outputs that share the value's bytes."""
        shared = set(self.all_of(value))
        return [name for name, output in self.graph.outputs.items() if output in shared]

    def root(self, value: Value) -> Value:
        """Return the value that owns the bytes of a view or part, following chains of both.

        The chain ends before a value that is neither a state nor computed in the forward pass. For
        example, a recomputed concatenation of saved parts is not saved by the forward pass, but its
        parts are.
        """
        placements = self._placements
        while placements[value].how in ("view", "part"):
            over = placements[value].over
            assert over is not None, "a view and a part lie in another value"
            if not (isinstance(over, State) or is_forward(over)):
                break
            value = over
        return value


def is_forward(value: Value) -> bool:
    """Return True if a value exists before the backward pass and is not a state."""
    if value.node is None:
        return not isinstance(value, State)
    return value.node.phase == "forward"
