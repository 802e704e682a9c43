"""Masks of transformers, decided for a planned step as in eager mode.

In eager mode, transformers looks at a mask. If it hides nothing, the model gets none, and attention
is a causal kernel that needs neither its bytes nor its time. Under torch.compile it does not look,
since that would break the graph. A plan assumes what control flow on data finds, and checks it in
each step (assumptions.py), so a planned step may look. Without data it may not;
but if a call passes no positions, each row is one sequence.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from graphc.torch.budget.trace.example import Given

MASKS = "transformers.masking_utils"

Results = Mapping[str, Callable[..., Any]]
"""Functions of `MASKS`, and what returns their results while Dynamo traces a step."""

WITH_DATA: Results = {
    "is_tracing": lambda tensor=None: False,
    "is_torchdynamo_exporting": lambda: False,
}
WITHOUT_DATA: Results = {
    "is_tracing": lambda tensor=None: tensor is not None,
    "is_torchdynamo_exporting": lambda: False,
    "find_packed_sequence_indices": lambda position_ids: None,
}

_LOCK = threading.Lock()
_OPEN: dict[str, list[Any]] = {}
"""The functions of transformers, each once for each context that replaces it in any thread."""


def passes_positions(given: Given) -> bool:
    """Return whether a call may pass the positions of tokens, the third argument of a model."""
    args, kwargs = given
    return len(args) > 2 or kwargs.get("position_ids") is not None


@contextmanager
def replaced(results: Results) -> Iterator[None]:
    """Replace functions of transformers while Dynamo traces steps; others call the original.

    The contexts of several threads may overlap.
    """
    module = sys.modules.get(MASKS)
    names = [name for name in results if hasattr(module, name)]
    with _LOCK:
        for name in names:
            originals = _OPEN.setdefault(name, [])
            originals.append(originals[0] if originals else getattr(module, name))
            setattr(module, name, _replacing(originals[0], results[name]))
    try:
        yield
    finally:
        with _LOCK:
            for name in names:
                original = _OPEN[name].pop()
                if not _OPEN[name]:
                    setattr(module, name, original)


@cache  # Dynamo guards on the identity of functions
def _replacing(original: Callable[..., Any], result: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return result(*args, **kwargs)
        return original(*args, **kwargs)

    return replacement
