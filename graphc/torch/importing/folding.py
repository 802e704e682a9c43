"""Constant folding: torch computes nodes without computed operands at import time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphc.importing.calls import UnsupportedError, check_numbers
from graphc.torch.importing.calls import operator_of
from graphc.torch.importing.rules.creation import FILLED
from graphc.torch.importing.symbols import elements_of


def folded(node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the results of a node, or None if it must run in a step, such as a random op.

    Functions of Python compute sizes from known numbers.
    """
    target = node.target
    if not isinstance(target, torch._ops.OperatorBase):
        return _computed(target, args, kwargs)
    if not isinstance(target, torch._ops.OpOverload):
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return None
    example = node.meta.get("val")
    for each in example if isinstance(example, tuple | list) else (example,):
        if isinstance(each, torch.Tensor):
            check_numbers(elements_of(each))
    name = operator_of(target)
    if name in FILLED and isinstance(example, torch.Tensor):
        number = FILLED[name]
        found = _argument(target, args, kwargs) if number is None else number
        return torch.full((), found, dtype=example.dtype).expand(example.shape)
    return _computed(target, args, {**kwargs, **_on_cpu(kwargs)})


def _computed(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a function of known operands."""
    try:
        with torch.no_grad():
            return target(*args, **kwargs)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedError(f"torch cannot compute it from known numbers: {reason}") from error


def _argument(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    names = [argument.name for argument in target._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}["fill_value"]


def _on_cpu(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if kwargs.get("device") is not None else {}
