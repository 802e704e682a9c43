"""Files that are complete or not there: what every writer of graphc goes through."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from graphc.errors import GraphcError


def write_atomically(
    path: str | os.PathLike[str], content: bytes, error: type[GraphcError]
) -> None:
    """Write under a temporary name beside `path`, then rename it over `path`.

    A reader, or a kill at any time, finds the old file or the new one. Raises `error` where the
    file cannot be written; nothing is left then.
    """
    try:
        target = Path(path)
    except TypeError:
        raise error(f"a path is a string or path object, got {path!r}") from None
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, ValueError) as failure:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        reason = getattr(failure, "strerror", None) or str(failure)
        raise error(
            f"cannot write {str(target)!r}: {reason}; nothing was written, choose a folder that "
            "exists and is writable"
        ) from None


def _umask() -> int:
    """The process's mask for new files; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
