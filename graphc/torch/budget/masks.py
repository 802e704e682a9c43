"""Masks of transformers, decided for a planned step as in eager mode.

In eager mode, transformers looks at a mask. If it hides nothing, the model gets none, and attention
is a causal kernel that needs neither its bytes nor its time. Under torch.compile it does not look,
since that would break the graph. A plan assumes what control flow on data finds, and checks it in
each step (`graphc.torch.budget.assumptions`), so a planned step may look. Without data, a call that
passes neither a mask nor positions has nothing to look at: no token is hidden.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from graphc.torch.budget.example import Given

MASKS = "transformers.masking_utils"


def _may_look(tensor: object = None) -> bool:
    """Replace ``is_tracing``: no data is out of reach."""
    return False


def _is_one_sequence(position_ids: object) -> None:
    """Replace ``find_packed_sequence_indices``: each row has one sequence."""
    return


LOOKS: Mapping[str, Callable[..., Any]] = {"is_tracing": _may_look}
HIDES_NOTHING = {**LOOKS, "find_packed_sequence_indices": _is_one_sequence}

_LOCK = threading.Lock()
_OPEN: dict[str, list[Any]] = {}
"""The functions of transformers, each once for each context that replaces it in any thread."""


def hides_nothing(given: Given) -> bool:
    """Return whether a call passes neither a mask nor positions by name."""
    args, kwargs = given
    return len(args) <= 1 and not {"attention_mask", "position_ids"} & kwargs.keys()


@contextmanager
def replaced(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions of transformers while steps are traced and called."""
    module = sys.modules.get(MASKS)
    names = [name for name in functions if hasattr(module, name)]
    with _LOCK:
        for name in names:
            stack = _OPEN.setdefault(name, [])
            stack.append(stack[0] if stack else getattr(module, name))
            setattr(module, name, functions[name])
    try:
        yield
    finally:
        with _LOCK:
            for name in names:
                original = _OPEN[name].pop()
                if not _OPEN[name]:
                    setattr(module, name, original)
