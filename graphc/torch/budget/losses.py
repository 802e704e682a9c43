"""Selection of the loss: the tensors of an output that are differentiated; others are detached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from graphc.errors import OptionError, quoted, truth
from graphc.torch.private import comptime

NO_LOSS = (
    "loss selects no tensor of the module's output; pass the name of an attribute or key of the "
    "output, or a function of it, such as loss=lambda out: out.loss"
)

COMPUTED = (
    "loss returns a tensor that is not in the module's output, so a call cannot return it with "
    "the output; pass return_outputs=False, and a call returns only the loss"
)


@dataclass(frozen=True)
class Loss:
    """A function or a name that selects the loss; None selects an attribute ``loss``, if any.

    Without `returns_outputs`, a call returns only what is selected.
    """

    selects: Callable[[Any], Any] | str | None
    returns_outputs: bool

    @classmethod
    def of(cls, loss: object, returns_outputs: object) -> Loss:
        """Return the loss for the options of a plan; raises `OptionError`."""
        if loss is not None and not callable(loss) and not isinstance(loss, str):
            raise OptionError(f"loss must be a name or a function of outputs, got {quoted(loss)}")
        return cls(loss, truth("return_outputs", returns_outputs))

    def applied(self, output: Any) -> Any:
        """Return the output in which only the loss requires gradients, or the loss alone.

        torch.compile traces this function, so the graph detaches the other tensors.
        """
        found = self._selected(output)
        kept = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]
        is_needed = self.selects is not None or not self.returns_outputs
        if is_needed and not kept and torch.is_grad_enabled():
            _refuse(NO_LOSS)
        if not self.returns_outputs:
            return found
        if not kept:
            return output
        leaves = tree_leaves(output)
        if not all(_is_among(each, leaves) for each in kept):
            if self.selects is None:  # an attribute of a class whose tensors torch does not find
                return output
            _refuse(COMPUTED)
        return tree_map(lambda each: _detached_unless(each, kept), output)

    def of_result(self, found: Any) -> Any:
        """Return the part of a call's result that is differentiated, from that of `applied`."""
        selected = self._selected(found) if self.returns_outputs else found
        return found if selected is None else selected

    def _selected(self, output: Any) -> Any:
        if callable(self.selects):
            return self.selects(output)
        if self.selects is None:
            return getattr(output, "loss", None)
        name = self.selects
        return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _is_among(tensor: torch.Tensor, leaves: list[Any]) -> bool:
    return any(each is tensor for each in leaves)


def _detached_unless(leaf: Any, kept: list[Any]) -> Any:
    is_other = isinstance(leaf, torch.Tensor) and leaf.requires_grad and not _is_among(leaf, kept)
    return leaf.detach() if is_other else leaf


def _refuse(rule: str) -> None:
    """Raise `OptionError` while torch.compile traces the call of this function."""
    comptime(_raise)


def _raise(context: Any) -> None:
    raise OptionError(context.get_local("rule").as_python_constant())
