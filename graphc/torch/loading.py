"""`graphc.torch.load`, there without torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphc.importing.network import Network
from graphc.torch.versions import require_torch

if TYPE_CHECKING:
    import torch


def load(
    module: torch.nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    trainable: bool | str | Collection[str] | None = None,
    weights: bool = True,
) -> Network:
    """The network of a module called with these arguments, as values to compile or to train.

    `module` may be one that `torch.export.export` has exported, or the file of one, ``.pt2``, which
    need no arguments. It is taken in the mode it is in: dropout drops, and batch norm moves its
    running statistics, in training mode only. Arguments give shapes and dtypes; tensors among them
    become inputs of their parameters' names, all else is part of the network.

    `trainable` says which weights learn: by default, or for True, the parameters that require a
    gradient, none for False, or those whose names a regular expression finds, or those named.
    Without `weights` each parameter begins as a layer's would, not as the module's.

    Raises `TorchError` for a module that torch cannot export, and one that lists all that graphc
    lacks for it; `OptionError` for names in `trainable` that the module does not have.
    """
    require_torch()
    from graphc.torch.importer import load

    return load(module, args, kwargs, trainable, weights)


def is_module(given: object) -> bool:
    """Whether something is a module of torch, or one that is exported; torch is not imported."""
    kinds = {(base.__module__, base.__qualname__) for base in type(given).__mro__}
    modules = {
        ("torch.nn.modules.module", "Module"),
        ("torch.export.exported_program", "ExportedProgram"),
    }
    return bool(kinds & modules)
