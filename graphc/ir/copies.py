"""A cache of results that a node shares with its copies in other graphs.

A search over schedules allocates many graphs, whose nodes are those of one graph and copies of
them. The layouts and the workspace of a node depend only on its op, attributes, types, and the
strides of its values, so copies can share them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from graphc.ir.graph import Node

Result = TypeVar("Result")


class SharedByCopies(Generic[Result]):
    """A cache of results by node and by a key, such as the strides of its values.

    Copies share results.

    Two nodes are copies if their attributes and their output types are the same objects; their
    inputs then have the same types. An entry refers to both objects, so that no other object gets
    the same id.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[object, object, Result]] = {}

    def get(self, node: Node, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the result for a node and a key; call `compute` if no copy has one for the key."""
        whole = node.op.name, id(node.attributes), id(node.output_types), key
        found = self._known.get(whole)
        if found is None:
            found = self._known[whole] = node.attributes, node.output_types, compute()
        return found[2]
