"""The zoo: networks written in the DSL, each a function from sizes to a scalar loss."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.graph import Value
from graphc.models.mlp import mlp

MODELS: dict[str, Callable[..., Value]] = {"mlp": mlp}

__all__ = ["MODELS", "mlp"]
