"""Machine code of kernels, compiled once and kept in a folder.

A file is named after all that its content depends on: the kernel's text, the compiler with its
version and options, the processor. It starts with a digest of the rest, so one that was cut short
is compiled again; it is written whole or not at all, so several processes may share the folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from graphc.errors import GraphcError
from graphc.files import write_atomically

DIGEST_BYTES = 32


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: in the user's cache, as XDG's base directories say.

    None for a user who has no home, or one that is no absolute path.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        home = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return home / "graphc" / "kernels" if home.is_absolute() else None


def machine_code(
    texts: Mapping[str, str],
    compiler: object,
    suffix: str,
    folder: Path | None,
    compile: Callable[[str], bytes],
) -> dict[str, bytes]:
    """The machine code of each text by name; what is not in `folder` is compiled, and kept there.

    `compiler` is all that code depends on beside a text; its `repr` is part of a file's name.
    `compile` is called on several threads. None as the folder keeps nothing.
    """
    paths = {
        name: folder / f"{_digest(text, compiler)}.{suffix}" if folder else None
        for name, text in texts.items()
    }
    found = {name: code for name, path in paths.items() if (code := _kept(path)) is not None}
    missing = [name for name in texts if name not in found]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(lambda name: compile(texts[name]), missing)
        for name, code in zip(missing, compiled, strict=True):
            found[name] = code
            _keep(paths[name], code)
    return {name: found[name] for name in texts}


def _digest(text: str, compiler: object) -> str:
    return hashlib.sha256(repr((text, compiler)).encode()).hexdigest()


def _kept(path: Path | None) -> bytes | None:
    """The code that a file holds; None where it is missing or broken."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(path: Path | None, code: bytes) -> None:
    """Keep code in a file; a folder that cannot be written costs time, nothing else."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, hashlib.sha256(code).digest() + code, GraphcError)
    except (OSError, GraphcError):
        return
