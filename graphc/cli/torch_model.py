"""A loss, made from a module of torch that a function of a file returns with its arguments."""

from __future__ import annotations

from typing import Any

import graphc
from graphc.cli.onnx_model import loss_of
from graphc.importing.network import Network
from graphc.ir.graph import Value
from graphc.torch.loading import is_module

ASKED = ("loss", "trainable")
"""What is asked of a network that is read, beside the arguments of the function."""


def is_called_module(made: object) -> bool:
    """Whether a function has returned a module with the arguments of a call."""
    return isinstance(made, tuple) and 2 <= len(made) <= 3 and is_module(made[0])


def read(made: Any, trainable: str | None, weights: bool) -> Network:
    """The network of a module, its arguments, and those by name where there are any."""
    module, args, kwargs = (*made, None)[:3]
    chosen = None if trainable is None else str(trainable)
    return graphc.torch.load(module, args, kwargs, trainable=chosen, weights=weights)


def module_loss(model: str, made: Any, asked: dict[str, Any]) -> Value:
    """The loss of such a module, whose weights are not read."""
    network = read(made, asked.get("trainable"), weights=False)
    return loss_of(model, network, asked.get("loss"))
