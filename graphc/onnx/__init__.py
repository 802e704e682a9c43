"""Import and export of ONNX files. The package `onnx` is imported lazily."""

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
    """Load an ONNX file, or a model in memory, as a network to compile or to train.

    `dims` binds symbolic extents, ``{"N": 32}``, or gives an input a shape by its name. Symbols
    bound by a shape hold for other inputs, too. Extents that are fixed in the file may be changed,
    too. `trainable` selects the trainable weights. The default and True select those that layers
    read (see the network's report), and False selects none. A string is a regular expression on
    names, and a collection lists names. With ``weights=False``, the parameters are not read and are
    initialized like those of layers. `known` gives values of inputs that become part of the
    network, such as shapes. They are arrays of the file's type, or Python numbers. Floats are
    rounded; integers must be exact.

    Raises `OnnxError` for a file that cannot be read, or with a list of all features that graphc
    lacks for it. Raises `OptionError` for names in `dims`, `trainable` or `known` that the model
    does not have, and for invalid extents and values.
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
    """Return the extents of each input of an ONNX file that has to be fed, by name.

    An extent is a number, a name for `dims` of `load`, or None if it is neither. The tuple is None
    for an input of unknown rank. Weights are not read. Raises `OnnxError` for a file that is not
    ONNX.
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

    A program's states are written with their current values. Outputs are a loss, a list, or a
    mapping from names. Their states are taken from `states` by name, such as the ``states`` of a
    program that has trained them. States that are not in `states` get the initial values of a
    program with this `seed` (default 0). Batch norm and dropout are written in inference form, or
    with ``training=True`` as in a training step. `external_data` writes states to a separate file;
    ``"auto"`` does so above 1 GiB. Information that ONNX cannot represent, such as scopes and
    initial values, is stored in the metadata, so that `load` returns the same network.

    Raises `OnnxError` for ops that ONNX cannot represent, and if the file cannot be written. Raises
    `OptionError` if none of `states` belongs to the outputs, and for a state of another type.
    """
    _require_onnx()
    from graphc.onnx.exporter import save

    save(source, path, external_data, training, seed, states)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise DependencyError(
            f"graphc.onnx requires the package onnx; {to_install('onnx', 'onnx')}"
        ) from None


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from graphc.errors import no_attribute

        if name not in __all__:
            raise no_attribute(__name__, name, __all__)
        _require_onnx()
        from graphc.onnx import backend

        return backend.Backend
