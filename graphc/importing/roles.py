"""Roles of a model's tensors: learned, fixed, or a running statistic.

The user can choose which tensors are learned.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from graphc.errors import OptionError, or_all, quoted
from graphc.importing.network import Kind
from graphc.importing.weights import Weight
from graphc.ir.graph import Initial
from graphc.ir.types import TensorType


@dataclass(frozen=True)
class Role:
    """The kind of a tensor, the reason for it, and True if the tensor is trained."""

    kind: Kind
    reason: str
    is_trained: bool

    def with_choice(self, weight: Weight, chosen: Collection[str] | None) -> Role:
        """Return the role if the user has chosen the tensors to learn.

        If `chosen` is None, or for tensors that cannot be learned, the role is unchanged.
        """
        if chosen is None or self.kind == "statistic" or weight.dtype.kind in "biuSO":
            return self
        if weight.name in chosen:
            return Role("parameter", f"{self.reason}; selected by trainable", True)
        if self.kind == "parameter":
            return Role("parameter", f"{self.reason}; not selected by trainable", False)
        return self


def chosen_names(
    trainable: bool | str | Collection[str] | None, weights: Mapping[str, Weight]
) -> Collection[str] | None:
    """Return the names of the tensors that the user chose to learn.

    Returns None if the model decides. Raises `OptionError` for a choice that names no tensor.
    """
    if trainable is None or trainable is True:
        return None
    if trainable is False:
        return ()
    if isinstance(trainable, str):
        try:
            found = {name for name in weights if re.search(trainable, name)}
        except re.error as error:
            raise OptionError(
                f"trainable: {trainable!r} is not a valid regular expression: {error}"
            ) from None
        if not found:
            raise OptionError(f"trainable: no tensor of the model matches {quoted(trainable)}")
        return found
    if not isinstance(trainable, Collection):
        raise OptionError(
            f"trainable must be True, False, a regular expression or names, got {quoted(trainable)}"
        )
    for name in trainable:
        if name not in weights:
            near = or_all(name, weights)
            raise OptionError(f"trainable: the model has no tensor {name!r}; {near}")
    return set(trainable)


def initial(type: TensorType, fill: float) -> Initial:
    """Return initial values for a weight whose content is not read from the model.

    They are random for matrices and larger ranks, and `fill` for vectors.
    """
    if type.rank >= 2:
        return Initial("uniform", math.sqrt(6 / math.prod(type.shape[1:])))
    return Initial("constant", fill)
