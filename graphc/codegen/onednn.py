"""Properties of oneDNN, the library for products and convolutions on the CPU: dtypes and
threads."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.ir.types import bfloat16, float32

NATIVE = (float32, bfloat16)

THREADS = 2
"""The number of threads for which workspaces are sized: the CPU profile has two cores."""


def is_native(node: Node) -> bool:
    """Return true if oneDNN supports the types of a product or convolution."""
    return all(value.type.dtype in NATIVE for value in (*node.inputs, node.output))
