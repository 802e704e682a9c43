"""Options of a call besides its arguments: autocast, and the selection of the loss, whose output's
other tensors are detached; and the parameters that must remain without gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from graphc.errors import OptionError, TorchError, quoted, truth
from graphc.torch.private import comptime
from graphc.torch.versions import is_before


class Frozen:
    """Parameters without gradients at the first plan, where torch does not look at them again."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]] = ()) -> None:
        self._parameters: list[tuple[str, weakref.ref[nn.Parameter]]] = []
        if is_before(torch.__version__, (2, 13)):
            frozen = ((name, each) for name, each in named if not each.requires_grad)
            self._parameters = [(name, weakref.ref(each)) for name, each in frozen]

    def refuse_thawed(self) -> None:
        """Raise `TorchError` if a parameter requires a gradient now, which its plan lacks."""
        for name, reference in self._parameters:
            each = reference()
            if each is not None and each.requires_grad:
                raise TorchError(
                    f"the parameter {name!r} requires a gradient, but did not when the step was "
                    f"planned, and torch {torch.__version__} does not trace it again; call "
                    "graphc.torch.plan again, or install torch 2.13 or newer"
                )


@dataclass(frozen=True)
class Autocast:
    """Arguments of ``torch.autocast``, whose contexts cannot be entered by several threads."""

    device_type: str
    dtype: torch.dtype
    enabled: bool = True
    cache_enabled: bool = True

    @classmethod
    def of(cls, autocast: object, module: nn.Module, is_profiled: bool) -> Autocast | None:
        """Return the autocast for an option of a plan; raises `OptionError`.

        A plan for a device profile is traced on a CPU, whose ops other autocasts do not change.
        """
        if autocast is None:
            return None
        if isinstance(autocast, torch.autocast):
            if is_profiled and autocast.device != "cpu":
                raise OptionError(
                    "autocast must be a dtype for a plan without data, such as autocast="
                    f"{autocast.fast_dtype}, got a torch.autocast of {autocast.device}"
                )
            enabled, cached = autocast._enabled, autocast._cache_enabled
            return cls(autocast.device, autocast.fast_dtype, enabled, cached)
        if isinstance(autocast, torch.dtype):
            device = next((each.device.type for each in module.parameters()), "cpu")
            return cls(device, autocast)
        raise OptionError(
            "autocast must be a dtype, such as torch.bfloat16, or a torch.autocast, got "
            f"{quoted(autocast)}"
        )


def context_of(autocast: Autocast | None) -> AbstractContextManager[object]:
    """Return a new context of this autocast, or an empty one."""
    if autocast is None:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(
        autocast.device_type, autocast.dtype, autocast.enabled, autocast.cache_enabled
    )
    return context


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
