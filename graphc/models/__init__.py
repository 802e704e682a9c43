"""The zoo: networks written in the DSL, each a function from sizes to a scalar loss."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.graph import Value
from graphc.models.lstm import lstm
from graphc.models.mlp import mlp
from graphc.models.resnet import preact_resnet, resnet

MODELS: dict[str, Callable[..., Value]] = {
    "lstm": lstm,
    "mlp": mlp,
    "preact_resnet": preact_resnet,
    "resnet": resnet,
}

__all__ = ["MODELS", "lstm", "mlp", "preact_resnet", "resnet"]
