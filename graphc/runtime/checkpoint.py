"""States to and from safetensors files. A file is complete or it is not there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from graphc.errors import CheckpointError
from graphc.files import write_atomically
from graphc.ir.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]


def save_states(
    path: str | os.PathLike[str], states: Mapping[str, Array], notes: Mapping[str, str]
) -> None:
    """Write all states, completely or not at all; raises `CheckpointError`."""
    for name, note in notes.items():
        if not isinstance(name, str) or not isinstance(note, str):
            raise CheckpointError(f"notes are strings by name, got {name!r}: {note!r}")
    content = save(dict(states), {"format": "graphc", **notes})
    write_atomically(path, content, CheckpointError)


def load_states(path: str | os.PathLike[str], types: Mapping[str, TensorType]) -> dict[str, Array]:
    """All states from a file, checked against the types that they must have."""
    found, _ = _read(path, with_states=True)
    _check_fit(str(path), found, types)
    return found


def read_notes(path: str | os.PathLike[str]) -> dict[str, str]:
    """The notes that a file was saved with."""
    return _read(path, with_states=False)[1]


def _read(
    path: str | os.PathLike[str], with_states: bool
) -> tuple[dict[str, Array], dict[str, str]]:
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys()) if with_states else []
            notes = {k: v for k, v in (file.metadata() or {}).items() if k != "format"}
            return {name: file.get_tensor(name) for name in names}, notes
    except TypeError:
        raise CheckpointError(f"a path is a string or path object, got {path!r}") from None
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {str(path)!r}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read as a safetensors file: {error}; it may be cut short or "
            "of another format. The program is unchanged"
        ) from None


def _check_fit(path: str, found: Mapping[str, Array], states: Mapping[str, TensorType]) -> None:
    missing = [name for name in states if name not in found]
    extra = [name for name in found if name not in states]
    problems = [f"missing {_some(missing)}"] if missing else []
    problems += [f"unknown {_some(extra)}"] if extra else []
    for name in (name for name in states if name in found):
        have, want = found[name], states[name]
        dtype = want.dtype.numpy
        if have.shape != want.shape or have.dtype != dtype:
            problems.append(
                f"{name} is {have.dtype}{list(have.shape)}, this network has "
                f"{dtype}{list(want.shape)}"
            )
    if problems:
        raise CheckpointError(
            f"{path!r} belongs to another network or optimizer: {'; '.join(problems[:4])}. "
            "The program is unchanged"
        )


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"
