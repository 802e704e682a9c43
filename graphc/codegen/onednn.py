"""What the library for products and convolutions on the CPU takes: dtypes, and threads."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.ir.types import bfloat16, float32

NATIVE = (float32, bfloat16)

THREADS = 2
"""How many threads there is room for in workspaces: the profile of the CPU has two cores."""


def is_native(node: Node) -> bool:
    """Whether the types of a product or convolution are those of the library."""
    return all(value.type.dtype in NATIVE for value in (*node.inputs, node.output))
