"""Files that record the algorithms chosen by libraries, so that later runs use the same ones."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphc.errors import GraphcError
from graphc.files import write_atomically


def read_record(
    path: str | os.PathLike[str], kind: str, error: type[GraphcError]
) -> dict[str, Any] | None:
    """Read a record that `write_record` wrote; None if there is no such file.

    `kind` is ``engines`` or ``algorithms``. Raises `error` for a file with other contents.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise error(f"{os.fspath(path)!r} is not a record of {kind}: {fault}") from None
    if not isinstance(found, dict) or not isinstance(found.get(kind), dict):
        raise error(f"{os.fspath(path)!r} is not a record of {kind}; pass another file")
    return found


def recorded(
    record: Mapping[str, Any] | None, kind: str, library: str, version: object,
    error: type[GraphcError],
) -> dict[str, Any]:  # fmt: skip
    """Return the choices of a record; empty without a record.

    Raises `error` for a record of another version of the library.
    """
    if record is None:
        return {}
    if record.get(library.lower()) != version:
        raise error(
            f"the record of {kind} was written by {library} {record.get(library.lower())}, but "
            f"version {version} is installed; install the recorded version, or delete the record"
        )
    return dict(record[kind])


def write_record(
    path: str | os.PathLike[str], record: Mapping[str, Any], error: type[GraphcError]
) -> None:
    """Write a record for later runs, atomically."""
    write_atomically(path, json.dumps(record, indent=1, sort_keys=True).encode(), error)
