"""What a node is called: the path of its module, as ``named_modules`` gives it."""

from __future__ import annotations

from torch import fx


def module_path(node: fx.Node) -> str:
    """The path of the module whose forward a node is of, or whose gradient: ``blocks.3.norm``."""
    found = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in found.values()]
    return clean(paths[-1]) if paths else ""


def clean(path: str) -> str:
    """A path as ``named_modules`` gives it, from what Dynamo calls it."""
    for noise in ("L['self'].module.", "L['self'].module", "L['self'].", "L['self']"):
        path = path.removeprefix(noise)
    path = path.replace("_modules['", "").replace("']", "").replace("[", ".").replace("]", "")
    return path.strip(".")
