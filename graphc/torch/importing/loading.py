"""`graphc.torch.load`, importable without torch."""

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
    """Import a module called with these arguments as a network to compile or train.

    `module` may also be a program exported by `torch.export.export`, or its ``.pt2`` file, which
    need no arguments. The module keeps its mode: dropout drops, and batch norm updates running
    statistics, only in training mode. The arguments determine shapes and dtypes. Tensors among
    them become inputs named after their parameters; all other arguments become constants.

    `trainable` selects the weights to train. By default, or if True, these are the parameters that
    require a gradient; if False, none. A string is a regular expression for names, and a
    collection lists names. Without `weights`, parameters get the initial values of graphc's
    layers instead of the module's values.

    Raises `TorchError` if torch cannot export the module, or with a list of everything that graphc
    does not support. Raises `OptionError` for names in `trainable` that the module does not have.
    """
    require_torch()
    from graphc.torch.importing.importer import load

    return load(module, args, kwargs, trainable, weights)


def is_module(given: object) -> bool:
    """Return whether the object is a torch module or exported program, without importing torch."""
    kinds = {(base.__module__, base.__qualname__) for base in type(given).__mro__}
    modules = {
        ("torch.nn.modules.module", "Module"),
        ("torch.export.exported_program", "ExportedProgram"),
    }
    return bool(kinds & modules)
