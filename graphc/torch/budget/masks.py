"""Masks of transformers, decided for a planned step as in eager mode.

In eager mode, transformers looks at a mask. If it hides nothing, the model gets none, and attention
is a causal kernel that needs neither its bytes nor its time. Under torch.compile it does not look,
since that would break the graph. A plan assumes what control flow on data finds, and checks it in
each step (`graphc.torch.budget.assumptions`), so a planned step may look.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MASKS, DECIDES = "transformers.masking_utils", "is_tracing"
"""The module of transformers, and its function that says whether it may look at data."""

_LOCK = threading.Lock()
_OUTER: list[Any] = []
"""The function of transformers, once for each context that is open in any thread."""


@contextmanager
def masks_as_in_eager() -> Iterator[None]:
    """Let transformers look at masks while steps are traced and called."""
    module = sys.modules.get(MASKS)
    if not hasattr(module, DECIDES):
        yield
        return
    with _LOCK:
        _OUTER.append(_OUTER[0] if _OUTER else getattr(module, DECIDES))
        setattr(module, DECIDES, _never)
    try:
        yield
    finally:
        with _LOCK:
            original = _OUTER.pop()
            if not _OUTER:
                setattr(module, DECIDES, original)


def _never(tensor: object = None) -> bool:
    """Return False: no data is out of reach."""
    return False
