"""Files that keep what libraries chose, so that later runs have the same algorithms."""

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
    """A record of such choices that `write_record` wrote; None where there is no such file.

    `kind` is what is recorded: ``engines`` or ``algorithms``. Raises `error` for a file that holds
    something else.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise error(f"{os.fspath(path)!r} is no record of {kind}: {fault}") from None
    if not isinstance(found, dict) or not isinstance(found.get(kind), dict):
        raise error(f"{os.fspath(path)!r} is no record of {kind}; give another file")
    return found


def recorded(
    record: Mapping[str, Any] | None, kind: str, library: str, version: object,
    error: type[GraphcError],
) -> dict[str, Any]:  # fmt: skip
    """What a record holds; nothing without one. Raises `error` for one of another version."""
    if record is None:
        return {}
    if record.get(library.lower()) != version:
        raise error(
            f"the record of {kind} is of {library} {record.get(library.lower())}, this is "
            f"{version}; install that version, or drop the record"
        )
    return dict(record[kind])


def write_record(
    path: str | os.PathLike[str], record: Mapping[str, Any], error: type[GraphcError]
) -> None:
    """Keep a record for later runs, completely or not at all."""
    write_atomically(path, json.dumps(record, indent=1, sort_keys=True).encode(), error)
