"""Settings of modules that must not change after planning, such as Hugging Face's caches."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from graphc.errors import TorchError
from graphc.torch.versions import is_before

HEADS = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""Ends of the names of classes that set ``problem_type``."""


@dataclass(frozen=True)
class Settled:
    """A setting that planning has changed, such as ``config.use_cache``, and its new value."""

    name: str
    value: bool | str


def settle(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Settled, ...]:
    """Change the settings of a module for a training step with these arguments.

    Trainers set ``use_cache`` to false: a cache only serves generation. Heads for classification
    set ``problem_type`` in their first step, by the number of labels and their type. Encoders of
    audio ask for the gradient of their input, which nothing reads and Dynamo cannot trace.
    """
    found = []
    for path, each in module.named_modules():
        config: Any = getattr(each, "config", None)
        name = f"{path}.config".lstrip(".")
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
            found.append(Settled(f"{name}.use_cache", False))
        is_of_transformers = type(each).__module__.startswith("transformers.")
        if is_of_transformers and getattr(each, "_requires_grad", None) is True:
            each._requires_grad = False
            found.append(Settled(f"{path}._requires_grad".lstrip("."), False))
        if type(each).__name__.endswith(HEADS) and getattr(config, "problem_type", "") is None:
            labels = _labels(module, args, kwargs)
            if labels is not None and hasattr(config, "num_labels"):
                config.problem_type = _problem_type(config.num_labels, labels)
                found.append(Settled(f"{name}.problem_type", config.problem_type))
    return tuple(found)


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


CAPTURING, INSTALLS = "transformers.utils.output_capturing", "maybe_install_capturing_hooks"
"""A function that the first step of some models calls, and that takes a lock."""


def install_hooks(module: nn.Module, error: Exception) -> bool:
    """Install the hooks of transformers that capture outputs, if a trace failed at that function.

    Return False if it failed elsewhere, or if all hooks are installed.
    """
    install = getattr(sys.modules.get(CAPTURING), INSTALLS, None)
    if install is None or INSTALLS not in str(error):
        return False
    found = [
        each
        for each in module.modules()
        if getattr(each, "_can_record_outputs", None)
        and not getattr(each, "_output_capturing_hooks_installed", False)
    ]
    for each in found:
        install(each)
    return bool(found)


def _labels(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """Return the argument ``labels`` of a call if it is a tensor."""
    given: Mapping[str, Any] = kwargs
    with suppress(TypeError):  # planning refuses wrong arguments
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    labels = given.get("labels", kwargs.get("labels"))
    return labels if isinstance(labels, torch.Tensor) else None


def _problem_type(num_labels: int, labels: torch.Tensor) -> str:
    """Return the type that a head of transformers sets in its first step."""
    if num_labels == 1:
        return "regression"
    is_of_classes = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if is_of_classes else "multi_label_classification"
