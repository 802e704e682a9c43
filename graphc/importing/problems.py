"""What graphc lacks for a model: gathered node by node, told in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphc.errors import GraphcError, PlacedError, escaped

MOST_LISTED = 20
"""Faults of one kind that a message lists."""

MOST_MODULES = 6
"""Modules of one fault that a message lists."""

NO_RULE = "graphc has no rule for it"


class Missing:
    """What stands for a tensor that could not be made; nodes that read it are passed over."""


@dataclass(frozen=True)
class Place:
    """A node by its name, and the module that it belongs to, where there are modules."""

    node: str
    module: str = ""

    def __str__(self) -> str:
        return f"{self.node!r} of {self.module}" if self.module else repr(self.node)


@dataclass
class Problems:
    """What operators lack, with the nodes where they do; other faults; inputs without a type."""

    operators: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    missing: Missing = field(default_factory=Missing)

    def operator(self, name: str, place: Place, rule: str = NO_RULE) -> Missing:
        """Note a node whose operator breaks a rule, by default that there is none for it."""
        self.operators.setdefault((name, rule), []).append(place)
        return self.missing

    def add(self, kind: str, name: str, error: GraphcError) -> Missing:
        """Note what is wrong with one node, or with another part of the model."""
        self.faults.append(f"{kind} {name!r}: {told(error)}")
        return self.missing

    def input(self, sentence: str) -> None:
        """Note what an input lacks."""
        self.inputs.append(sentence)

    def message(self, *cures: str) -> str | None:
        """All that was noted, and what would help, as one text; None where nothing was."""
        lines = [*self.inputs]
        for (name, rule), places in self.operators.items():
            times = f"operator {name}: {len(places)} times, first in {places[0]}"
            lines.append(f"{times}; {rule}{_modules(places)}")
        lines += self.faults
        if not lines:
            return None
        shown = [escaped(line) for line in lines[:MOST_LISTED]]
        if len(lines) > MOST_LISTED:
            shown.append(f"and {len(lines) - MOST_LISTED} more")
        return "the model cannot be taken:\n  " + "\n  ".join([*shown, *cures])


def told(error: GraphcError) -> str:
    """What went wrong, without a place in Python's code."""
    return error.message if isinstance(error, PlacedError) else str(error)


def _modules(places: Sequence[Place]) -> str:
    """The modules of a fault that is in several."""
    modules = list(dict.fromkeys(place.module for place in places if place.module))
    if len(modules) < 2:
        return ""
    more = len(modules) - MOST_MODULES
    behind = f" and {more} more" if more > 0 else ""
    return f"; in {', '.join(modules[:MOST_MODULES])}{behind}"
