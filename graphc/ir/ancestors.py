"""Ancestors of values: the nodes that they need."""

from __future__ import annotations

from collections.abc import Iterable

from graphc.ir.graph import Node, Value


def ancestors(targets: Iterable[Value]) -> list[Node]:
    """Return all nodes that the targets need, in order of creation.

    The search is iterative, so that the depth of a graph is not limited.
    """
    found: set[Node] = set()
    pending = [value.node for value in targets if value.node is not None]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        pending.extend(v.node for v in node.inputs if v.node is not None and v.node not in found)
    return sorted(found, key=lambda node: node.serial)
