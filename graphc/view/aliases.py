"""Who reads a value's bytes: its own readers, and those of what shares its bytes by definition.

A view has the bytes of what it views, and a concatenation those of the parts that are computed in
their place. So a value is needed until the last reader of any of them.
"""

from __future__ import annotations

from typing import NamedTuple

from graphc.ir.graph import State, Value
from graphc.plans.memory_plan import MemoryPlan


class Reader(NamedTuple):
    """A step, and the value that its node reads: the value that was asked for, or an alias."""

    step: int
    value: Value


class Aliases:
    """The aliases of every value of a plan: its views, and what it is a part of."""

    def __init__(self, plan: MemoryPlan) -> None:
        self.graph = plan.graph
        self._placements = plan.placements
        self._of: dict[Value, list[Value]] = {}
        for value, place in plan.placements.items():
            if place.over is not None and place.how == "view":
                self._of.setdefault(place.over, []).append(value)
            elif place.over is not None and place.how == "part":
                self._of.setdefault(value, []).append(place.over)

    def all_of(self, value: Value) -> list[Value]:
        """The value, its views and concatenations, theirs, and so on, each once."""
        found = dict.fromkeys((value,))
        waiting = [value]
        while waiting:
            for alias in self._of.get(waiting.pop(), ()):
                if alias not in found:
                    found[alias] = None
                    waiting.append(alias)
        return list(found)

    def readers(self, value: Value) -> list[Reader]:
        """All reads of the value's bytes, in the order of steps."""
        uses = self.graph.uses
        found = [Reader(step, alias) for alias in self.all_of(value) for step in uses[alias]]
        return sorted(found, key=lambda reader: reader.step)

    def output_names(self, value: Value) -> list[str]:
        """Outputs of the program that have the value's bytes."""
        shared = set(self.all_of(value))
        return [name for name, output in self.graph.outputs.items() if output in shared]

    def root(self, value: Value) -> Value:
        """The value that holds a value's bytes whole: what it views or is a part of, followed on.

        Only a value of the forward pass or a state counts: a recomputed concatenation of kept parts
        is not what the forward pass keeps.
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
    """Whether a value is there before the gradient pass, states aside."""
    if value.node is None:
        return not isinstance(value, State)
    return value.node.phase == "forward"
