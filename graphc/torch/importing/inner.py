"""Subgraphs of a graph, such as parts without gradients and activation checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphc.torch.importing.calls import operator_of

Inner = tuple[torch.fx.GraphModule, Sequence[Any], bool]
"""The graph, its operands, and whether gradients flow through it."""


def inner_graph(node: torch.fx.Node, args: Sequence[Any]) -> Inner | None:
    """Return the subgraph that a node calls, or None if it calls none."""
    name = operator_of(node.target)
    if name == "wrap_with_set_grad_enabled":
        enabled, module, *operands = args
        return module, operands, bool(enabled)
    if name in ("tag_activation_checkpoint", "wrap_activation_checkpoint", "invoke_subgraph"):
        module, *operands = args
        return module, operands, True
    if name == "wrap_with_autocast":
        return args[4], args[5:], True
    return None
