"""Saving and loading of states as safetensors files. Files are written atomically."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from graphc.errors import CheckpointError
from graphc.files import write_atomically
from graphc.ir.names import FLOAT8_STATES
from graphc.ir.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]

MARK = {"format": "graphc"}
"""The metadata entry that marks a file as written by graphc."""

RESERVED = re.compile(r"(note:)*format")
"""Names of notes that get the prefix `note:` in a file, so that they do not replace `MARK`."""

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The dtypes of safetensors that states can have → their names in NumPy."""

TAKE_A_PART = (
    "to load only matching states from the file: saved = safetensors.numpy.load_file(path); "
    "program.states.update({name: saved[name] for name in program.states})"
)


OTHER_OPERANDS = (
    "states fp8/... are those of precision='fp8' for layers whose extents 16 divides; to keep what "
    "both have: saved = safetensors.numpy.load_file(path); "
    "program.states.update({name: saved[name] for name in saved if name in program.states})"
)


class _Header(NamedTuple):
    """The dtype and shape of one tensor in a file."""

    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.dtype}{self.shape}"


def save_states(
    path: str | os.PathLike[str], states: Mapping[str, Array], notes: Mapping[str, str]
) -> None:
    """Write all states, completely or not at all; raises `CheckpointError`."""
    metadata = {**MARK, **_metadata(notes)}
    if "__metadata__" in states:
        raise CheckpointError(
            "a state cannot be named '__metadata__', because safetensors files reserve that name "
            "for notes; rename the parameter"
        )
    try:
        content = save(dict(states), metadata)
    except (SafetensorError, UnicodeError) as error:
        raise CheckpointError(
            f"the states cannot be saved to {str(path)!r}: {error}; names and notes must be "
            "Unicode text of at most 100 MB in total. Nothing was written"
        ) from None
    write_atomically(path, content, CheckpointError)


def load_states(path: str | os.PathLike[str], types: Mapping[str, TensorType]) -> dict[str, Array]:
    """Read all states from a file, and check them against their expected types."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        found = {
            name: _Header(DTYPES.get(told.get_dtype(), told.get_dtype()), told.get_shape())
            for name, told in slices.items()
        }
        _check_fit(str(path), found, types)
        # Read after the check: NumPy has no arrays for some dtypes of the format.
        return {name: file.get_tensor(name) for name in types}


def read_notes(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the notes that were saved in a file."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
    return {
        name.removeprefix("note:") if RESERVED.fullmatch(name) else name: note
        for name, note in metadata.items()
        if (name, note) not in MARK.items()
    }


def _metadata(notes: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(notes, Mapping):
        raise CheckpointError(f"notes must map names to strings, got {notes!r}")
    for name, note in notes.items():
        if not isinstance(name, str) or not isinstance(note, str):
            raise CheckpointError(f"notes must map names to strings, got {name!r}: {note!r}")
    return {
        f"note:{name}" if RESERVED.fullmatch(name) else name: note for name, note in notes.items()
    }


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file; raises `CheckpointError` with the cause if that fails."""
    try:
        name = str(Path(path))
    except TypeError:
        raise CheckpointError(f"a path must be a string or path object, got {path!r}") from None
    try:
        _check_readable(name)
        with safe_open(name, framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {name!r}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"{name!r} cannot be read: {reason}. The program is unchanged"
        ) from None
    except SafetensorError as error:
        raise CheckpointError(
            f"{name!r} cannot be read as a safetensors file: {error}; it may be truncated or have "
            "another format. The program is unchanged"
        ) from None


def _check_readable(path: str) -> None:
    """Raise `OSError` with the cause if a file cannot be opened.

    `safe_open` reports every such file as missing.
    """
    # `O_NONBLOCK` returns at once, even for a pipe without a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def _check_fit(path: str, found: Mapping[str, _Header], states: Mapping[str, TensorType]) -> None:
    missing = [name for name in states if name not in found]
    extra = [name for name in found if name not in states]
    problems = [f"missing {_some(missing)}"] if missing else []
    problems += [f"unknown {_some(extra)}"] if extra else []
    for name in (name for name in states if name in found):
        want = _Header(states[name].dtype.name, list(states[name].shape))
        if found[name] != want:
            problems.append(f"{name} is {found[name]} in the file, but {want} in this network")
    if problems:
        # For example, the states of a training run for an inference program.
        is_enough = len(problems) == 1 and extra
        cure = f"; {TAKE_A_PART}" if is_enough else ""
        if any(name.startswith(FLOAT8_STATES) for name in (*missing, *extra)):
            cure = f"; {OTHER_OPERANDS}"
        raise CheckpointError(
            f"{path!r} belongs to another network or optimizer: {'; '.join(problems[:4])}. "
            f"The program is unchanged{cure}"
        )


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"
