"""Cache of compiled kernels on disk.

The name of a file is a digest of everything that its content depends on: the text of the kernel,
the compiler with its version and options, and the processor. A file starts with a digest of the
rest, so a truncated file is detected and compiled again. Files are written atomically, so several
processes may share the folder.
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
    """Return the cache folder of compiled kernels, by the XDG base directory specification.

    Returns None for a user without a home, or with one that is not an absolute path.
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
    """Return the machine code of each text by name, compiling and caching what `folder` lacks.

    `compiler` is everything besides the text on which the code depends, such as versions. Its
    `repr` is part of the digest that names a file. `compile` is called on several threads. Without
    a folder, nothing is cached.
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
    """Read the code of a file; None if it is missing or corrupt."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(path: Path | None, code: bytes) -> None:
    """Write code to a file. Errors are ignored: without the cache, kernels are compiled again."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, hashlib.sha256(code).digest() + code, GraphcError)
    except (OSError, GraphcError):
        return
