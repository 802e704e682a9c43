"""ONNX files come in as networks of graphc, and go out. The package onnx is imported when used."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from graphc.errors import DependencyError, to_install, truth
from graphc.importing.network import Reported
from graphc.onnx.network import Network

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from graphc.ir.graph import Value
    from graphc.onnx.backend import Backend
    from graphc.runtime.program import Program

__all__ = ["Backend", "Network", "Reported", "input_extents", "load", "save"]


def load(
    path: str | os.PathLike[str] | onnx.ModelProto,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    trainable: bool | str | Collection[str] | None = None,
    weights: bool = True,
    known: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Network:
    """The network of an ONNX file, or of a model in memory, as values to compile or to train.

    `dims` gives numbers to symbolic extents, ``{"N": 32}``, or a shape to an input by its name, of
    which symbols hold for other inputs, too, and numbers may be others than the file's.
    `trainable` says which weights learn: by default, or for True, those that layers read (see the
    network's report), none for False, or those whose names a regular expression finds, or those
    named. Without `weights` no number of a parameter is read, and each begins as a layer's
    would. `known` gives inputs as numbers that are part of the network, such as shapes: arrays of
    the file's type, or Python's numbers, of which floats are rounded and whole numbers exact.

    Raises `OnnxError` for a file that cannot be read, and one that lists all that graphc lacks for
    it; `OptionError` for names in `dims`, `trainable` or `known` that the model does not have,
    and for extents and numbers that do not suit it.
    """
    _require_onnx()
    from graphc.onnx.importer import load

    return load(
        path,
        {} if dims is None else dims,
        trainable,
        truth("onnx.load: weights", weights),
        {} if known is None else known,
    )


def input_extents(path: str | os.PathLike[str]) -> dict[str, tuple[int | str | None, ...] | None]:
    """The extents of each input that an ONNX file wants fed, by the input's name.

    They are numbers, names for `load`'s `dims`, or None for neither; in place of the tuple stands
    None for an input without a rank. No weight is read. Raises `OnnxError` for a file that is none.
    """
    _require_onnx()
    from graphc.onnx.extents import input_extents

    return input_extents(path)


def save(
    source: Program | Value | Sequence[Value] | Mapping[str, Value],
    path: str | os.PathLike[str],
    external_data: bool | Literal["auto"] = "auto",
    training: bool = False,
    seed: int | None = None,
    states: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> None:
    """Write the forward graph of a program, or of outputs, as ONNX, completely or not at all.

    A program's states are written as they are; those of outputs (a loss, a list, or a mapping from
    names) as `states` has them by name, such as the ``states`` of a program that has trained them,
    and all others as a program with that `seed`, 0 by default, would begin. Batch norm and dropout
    are written as they are outside of training, or with ``training=True`` as they are in a step.
    `external_data` says whether states go to a file beside this one: ``"auto"`` for more than 1
    GiB. What ONNX cannot hold, such as scopes and initial values, stands in the metadata, so that
    `load` gives the same network.

    Raises `OnnxError` for what ONNX has no form for, and where the file cannot be written, and
    `OptionError` for states of which none is these outputs', and for one of another type.
    """
    _require_onnx()
    from graphc.onnx.exporter import save

    save(source, path, external_data, training, seed, states)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise DependencyError(
            f"graphc.onnx needs the package onnx; {to_install('onnx', 'onnx')}"
        ) from None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from graphc.errors import no_attribute

        if name not in __all__:
            raise no_attribute(__name__, name, __all__)
        _require_onnx()
        from graphc.onnx import backend

        return backend.Backend
