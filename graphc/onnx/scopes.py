"""Scopes of an ONNX file's nodes, derived from the names of nodes.

``/layer1/conv/Conv`` is in the scope ``layer1/conv``, and ``/Relu`` is in none. ``Conv_12``, which
has no path, is in the scope ``Conv_12``.
"""

from __future__ import annotations

from graphc.importing.names import mangled


def scope_of(node_name: str) -> str:
    """Return the scope of a node with this name, or an empty string."""
    path, slash, _ = node_name.rpartition("/")
    if not slash:
        return mangled(node_name) if node_name else ""
    return mangled(path) if path.strip("/") else ""
