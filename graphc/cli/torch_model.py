"""Construction of a loss from a torch module that a function of a file returns."""

from __future__ import annotations

from typing import Any

import graphc
from graphc.cli.onnx_model import loss_of
from graphc.importing.network import Network
from graphc.ir.graph import Value
from graphc.torch.importing.loading import is_module

ASKED = ("loss", "trainable")
"""Settings of an imported network, which are no arguments of the function."""


def is_called_module(made: object) -> bool:
    """Return whether the result of a function is a module with the arguments of a call."""
    return isinstance(made, tuple) and 2 <= len(made) <= 3 and is_module(made[0])


def read(made: Any, trainable: str | None, weights: bool) -> Network:
    """Import the network of a module with its arguments and optional keyword arguments."""
    module, args, kwargs = (*made, None)[:3]
    chosen = None if trainable is None else str(trainable)
    return graphc.torch.load(module, args, kwargs, trainable=chosen, weights=weights)


def module_loss(model: str, made: Any, asked: dict[str, Any]) -> Value:
    """Return the loss of such a module, without reading its weights."""
    network = read(made, asked.get("trainable"), weights=False)
    return loss_of(model, network, asked.get("loss"))
