"""What graphc lacks for a model: gathered node by node, told in one error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import onnx

from graphc.errors import GraphcError, OnnxError, PlacedError, escaped

MOST_LISTED = 20
"""Faults of one kind that a message lists."""


class Missing:
    """What stands for a tensor that could not be made; nodes that read it are passed over."""


@dataclass
class Problems:
    """Operators without a rule, by name; faults of single nodes; inputs without a type."""

    operators: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    missing: Missing = field(default_factory=Missing)

    def operator(self, node: onnx.NodeProto) -> Missing:
        """Note a node whose operator has neither a rule nor a function."""
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        self.operators.setdefault(name, []).append(_called(node))
        return self.missing

    def add(self, kind: str, name: str, error: GraphcError) -> Missing:
        """Note what is wrong with one node, or with another part of the model."""
        message = error.message if isinstance(error, PlacedError) else str(error)
        self.faults.append(f"{kind} {name!r}: {message}")
        return self.missing

    def input(self, sentence: str) -> None:
        """Note what an input lacks."""
        self.inputs.append(sentence)

    def check(self, undetermined: Collection[str]) -> None:
        """Raise one `OnnxError` for all that was noted, if anything was.

        `undetermined` names inputs on which extents depend.
        """
        lines = [*self.inputs]
        lines += [
            f"operator {name}: {len(nodes)} times, first in {nodes[0]}; graphc has no rule for it"
            for name, nodes in self.operators.items()
        ]
        lines += self.faults
        if not lines:
            return
        shown = [escaped(line) for line in lines[:MOST_LISTED]]
        if len(lines) > MOST_LISTED:
            shown.append(f"and {len(lines) - MOST_LISTED} more")
        if undetermined:
            named = ", ".join(sorted(undetermined))
            shown.append(f"give inputs that shapes depend on by known={{...}}: {named}")
        raise OnnxError("the model cannot be taken:\n  " + "\n  ".join(shown), undetermined)


def _called(node: onnx.NodeProto) -> str:
    return repr(node.name or next(iter(node.output), ""))
