"""Results that a node shares with its copies in other graphs.

A search over schedules allocates many graphs that consist of one graph's nodes and copies of them.
Layouts and workspaces depend on a node's op, attributes, types and the strides of its values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from graphc.ir.graph import Node

Result = TypeVar("Result")


class SharedByCopies(Generic[Result]):
    """A cache of results by node, up to copies, and by a key such as the strides of its values.

    Nodes that share both the attributes and the output types are copies of one node, so their
    inputs have the same types. An entry keeps references to both, so that no other object gets the
    same id.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[object, object, Result]] = {}

    def get(self, node: Node, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result of a node, computed if no copy has had the same key."""
        whole = node.op.name, id(node.attributes), id(node.output_types), key
        found = self._known.get(whole)
        if found is None:
            found = self._known[whole] = node.attributes, node.output_types, compute()
        return found[2]
