"""Parts of transformers that a planned step reads or replaces; all of them are in this file.

In eager mode, transformers looks at a mask. If it hides nothing, the model gets none, and attention
is a causal kernel that needs neither its bytes nor its time. Under torch.compile it does not look,
since that would break the graph. A plan assumes what control flow on data finds, and checks it in
each step (assumptions.py), so a planned step may look. Without data it may not; but if a call
passes no positions, each row is one sequence.

tests/pytorch/real/test_parts_of_transformers.py fails if a release lacks one of these parts.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from graphc.torch.budget.options import Given

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
