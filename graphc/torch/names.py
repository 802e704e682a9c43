"""What nodes and tensors are called: paths as ``named_modules`` gives them, without the step's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

Kind = Literal["parameter", "buffer", "input", "constant"]


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


def parameters_of(step: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A step's parameters by the names that they have in its module; ``loss_fn.`` is its loss's."""
    for name, each in step.named_parameters():
        yield name.removeprefix("module."), each


def buffers_of(step: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A step's buffers, as `parameters_of` has its parameters."""
    for name, each in step.named_buffers():
        yield name.removeprefix("module."), each


def arguments_of(given: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """What is in positional and keyword arguments: ``args[0]``, ``kwargs['batch']['x']``.

    What Dynamo calls them is the same, in the words of `expression_of_user`.
    """
    for (whole, *path), each in tree_flatten_with_path(given)[0]:
        yield f"{('args', 'kwargs')[whole.idx]}{keystr(tuple(path))}", each


def named(step: nn.Module, given: tuple[Any, ...]) -> Iterator[tuple[Kind, str, Any]]:
    """A step's parameters and buffers, and what is in the arguments of a call, with their names."""
    for name, each in parameters_of(step):
        yield "parameter", name, each
    for name, each in buffers_of(step):
        yield "buffer", name, each
    for name, each in arguments_of(given):
        yield "input", name, each


def expression_of_user(text: str) -> str:
    """What Dynamo says of variables of a step, in the words of the module: ``rotary.cos``."""
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", text)
    text = re.sub(r"\b([LG])\['(?:__import_)?([^']*)'\]", _variable, text)
    return re.sub(r"\bself\.(module\.)?", "", text)


def _variable(found: re.Match[str]) -> str:
    """A local variable, or one of a module of Python, whose name Dynamo writes without dots."""
    return found[2].replace("_dot_", ".") if found[1] == "G" else found[2]
