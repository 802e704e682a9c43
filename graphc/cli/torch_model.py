"""Construction of a loss from a torch module that a function of a file returns."""

from __future__ import annotations

from typing import Any

import graphc
from graphc.cli.onnx_model import loss_of
from graphc.importing.network import Network
from graphc.ir.graph import Value
from graphc.torch.importing.loading import is_module

ASKED = ("loss", "trainable")
"""Names of settings for the import of a network; they are not passed to the user's function."""


def is_called_module(made: object) -> bool:
    """Return True if a function has returned a module together with arguments to call it with."""
    return isinstance(made, tuple) and 2 <= len(made) <= 3 and is_module(made[0])


def read(made: Any, trainable: str | None, weights: bool) -> Network:
    """Import the network of a module with its arguments and optional keyword arguments."""
    module, args, kwargs = (*made, None)[:3]
    chosen = None if trainable is None else str(trainable)
    return graphc.torch.load(module, args, kwargs, trainable=chosen, weights=weights)


def module_loss(model: str, made: Any, asked: dict[str, Any]) -> Value:
    """Return the loss of a module that a user's function returned, without reading its weights."""
    network = read(made, asked.get("trainable"), weights=False)
    return loss_of(model, network, asked.get("loss"))
