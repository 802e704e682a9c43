"""Names of nodes and tensors: paths as in ``named_modules``, without the prefix of the step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from torch import fx, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

Kind = Literal["parameter", "buffer", "input", "constant"]


def module_path(node: fx.Node) -> str:
    """Return the path of a node's module, such as ``blocks.3.norm``.

    A node of the backward pass belongs to the module of its forward node.
    """
    found = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in found.values()]
    return clean(paths[-1]) if paths else ""


NOISE = (
    "L['self']._modules['module'].",  # torch 2.9
    "L['self'].module.",
    "L['self'].module",
    "L['self'].",
    "L['self']",
)
"""Prefixes of Dynamo's names for modules in a step."""


OF_DICTIONARY = re.compile(r"\.__dict__\['_modules'\]\['([^']*)'\]")
"""A submodule of a class with its own ``__getattr__``, in Dynamo's names."""


def clean(path: str) -> str:
    """Convert Dynamo's name of a module into its path in ``named_modules``."""
    path = OF_DICTIONARY.sub(r".\1", path)
    for noise in NOISE:
        path = path.removeprefix(noise)
    path = path.replace("_modules['", "").replace("']", "").replace("[", ".").replace("]", "")
    return path.strip(".")


def arguments_of(given: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of the arguments by name: ``args[0]``, ``kwargs['batch']['x']``.

    `expression_of_user` converts Dynamo's names into the same form.
    """
    for (whole, *path), each in tree_flatten_with_path(given)[0]:
        yield f"{('args', 'kwargs')[whole.idx]}{keystr(tuple(path))}", each


def named(step: nn.Module, given: tuple[Any, ...]) -> Iterator[tuple[Kind, str, Any]]:
    """Yield a step's parameters and buffers and a call's arguments, with kinds and names."""
    for name, each in step.named_parameters():
        yield "parameter", name, each
    for name, each in step.named_buffers():
        yield "buffer", name, each
    for name, each in arguments_of(given):
        yield "input", name, each


def expression_of_user(text: str) -> str:
    """Convert Dynamo's expression for variables of a step into the module's: ``rotary.cos``."""
    text = OF_DICTIONARY.sub(r".\1", text)
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", text)
    text = re.sub(r"\b([LG])\['(?:__import_)?([^']*)'\]", _variable, text)
    return re.sub(r"\bself\.(module\.)?", "", text)


def _variable(found: re.Match[str]) -> str:
    """Return the name of a local or global variable; Dynamo replaces dots in module names."""
    return found[2].replace("_dot_", ".") if found[1] == "G" else found[2]
