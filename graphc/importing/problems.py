"""Problems with importing a model: collected node by node, reported in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphc.errors import GraphcError, PlacedError, escaped

MOST_LISTED = 20
"""Maximum number of faults that a message lists."""

MOST_MODULES = 6
"""Maximum number of modules that a message lists for one fault."""

NO_RULE = "graphc has no rule for it"


class Missing:
    """A placeholder for a tensor that could not be created; nodes that read it are skipped."""


@dataclass(frozen=True)
class Place:
    """The location of a node in a model: its name, and its module if there are modules."""

    node: str
    module: str = ""

    def __str__(self) -> str:
        return f"{self.node!r} of {self.module}" if self.module else repr(self.node)


@dataclass
class Problems:
    """The faults found in a model, grouped for one error message.

    `operators` has the locations of each unsupported operator, `inputs` the faults of inputs, and
    `faults` all others.
    """

    operators: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    missing: Missing = field(default_factory=Missing)

    def operator(self, name: str, place: Place, rule: str = NO_RULE) -> Missing:
        """Record a node whose operator is not supported; `rule` is the reason.

        By default, the reason is that graphc has no import rule for the operator.
        """
        self.operators.setdefault((name, rule), []).append(place)
        return self.missing

    def add(self, kind: str, name: str, error: GraphcError) -> Missing:
        """Record a fault of one node or of another part of the model, by its kind and name."""
        self.faults.append(f"{kind} {name!r}: {told(error)}")
        return self.missing

    def input(self, sentence: str) -> None:
        """Record a fault of an input."""
        self.inputs.append(sentence)

    def message(self, *cures: str) -> str | None:
        """Return a text with all recorded faults and `cures`; None if there are no faults."""
        lines = [*self.inputs]
        for (name, rule), places in self.operators.items():
            times = f"operator {name}: {len(places)} occurrences, first in {places[0]}"
            lines.append(f"{times}; {rule}{_modules(places)}")
        lines += self.faults
        if not lines:
            return None
        shown = [escaped(line) for line in lines[:MOST_LISTED]]
        if len(lines) > MOST_LISTED:
            shown.append(f"and {len(lines) - MOST_LISTED} more")
        return "the model cannot be imported:\n  " + "\n  ".join([*shown, *cures])


def told(error: GraphcError) -> str:
    """Return the message of an error, without the location in Python code."""
    return error.message if isinstance(error, PlacedError) else str(error)


def _modules(places: Sequence[Place]) -> str:
    """Return a text that lists the modules of a fault, if it occurs in several modules."""
    modules = list(dict.fromkeys(place.module for place in places if place.module))
    if len(modules) < 2:
        return ""
    more = len(modules) - MOST_MODULES
    behind = f" and {more} more" if more > 0 else ""
    return f"; in {', '.join(modules[:MOST_MODULES])}{behind}"
