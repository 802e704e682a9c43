"""Values that models read during a step, and that are known although tensors have no data.

Layers left out at random (LayerDrop) are all computed, which takes the most memory. Positions that
a model counts itself contain no packed sequences; transformers looks for them in the positions, and
otherwise creates a mask for attention.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

MASKS = "transformers.masking_utils"
PACKED = "find_packed_sequence_indices"
BELOW = (torch.Tensor.lt, torch.Tensor.__lt__, torch.lt)


@contextmanager
def known_values() -> Iterator[None]:
    """Return a context in which models find these values."""
    masks = sys.modules.get(MASKS)
    with _KnownDraws():
        if not hasattr(masks, PACKED):
            yield
            return
        with patch.object(masks, PACKED, lambda position_ids: None):
            yield


class _KnownDraws(TorchFunctionMode):  # type: ignore[misc]
    """A mode in which a single random number is not below any probability."""

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a function of torch."""
        if function in BELOW and any(args[0] is each for each in self._draws):
            return False
        result = function(*args, **(kwargs or {}))
        if function is torch.rand and result.dim() == 0:
            self._draws.append(result)
        return result
