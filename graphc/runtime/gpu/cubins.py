"""Machine code of kernels, compiled once and kept in a folder.

A file is named after all that its content depends on: the kernel's text, the compiler's version and
options, the architecture. It starts with a digest of the rest, so one that was cut short is
compiled again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from graphc.codegen.text.kernel import Kernel, module_text
from graphc.errors import GraphcError
from graphc.files import write_atomically
from graphc.runtime.gpu.nvrtc import OPTIONS, compile_cubin, version

DIGEST_BYTES = 32


def cache_folder() -> Path:
    """Where compiled kernels are kept: in the user's cache, as XDG's base directories say."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "graphc" / "kernels"


def cubins(kernels: Iterable[Kernel], architecture: int, folder: Path | None) -> dict[str, bytes]:
    """The machine code of each kernel by name; what is not in `folder` is compiled, and kept there.

    None keeps nothing. Raises `KernelError` where a kernel does not compile.
    """
    texts = {kernel.name: module_text([kernel]) for kernel in kernels}
    paths = {
        name: folder / f"{_digest(text, architecture)}.cubin" if folder else None
        for name, text in texts.items()
    }
    found = {name: code for name, path in paths.items() if (code := _kept(path)) is not None}
    missing = [name for name in texts if name not in found]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # NVRTC runs without Python's lock
        compiled = pool.map(lambda name: compile_cubin(texts[name], architecture), missing)
        for name, code in zip(missing, compiled, strict=True):
            found[name] = code
            _keep(paths[name], code)
    return {name: found[name] for name in texts}


def _digest(text: str, architecture: int) -> str:
    key = repr((text, architecture, OPTIONS, version()))
    return hashlib.sha256(key.encode()).hexdigest()


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
