"""Cache of C++ code that tests compile, one per user of a machine.

The name of a library is a digest of its text, the compiler and its flags. Libraries that no test
has loaded for 30 days are removed.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from graphc.runtime.kernel_files import cache_folder

FOLDER = (cache_folder() or Path(tempfile.gettempdir()) / "graphc" / "kernels").with_name("tests")
FLAGS = ("-std=c++17", "-fPIC", "-shared")
SECONDS_KEPT = 30 * 24 * 3600


@functools.cache
def compiler() -> str:
    """Return the compiler's name and version."""
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


def load(text: str, *flags: str, header: str = "") -> ctypes.CDLL:
    """Return a C++ text as a shared library, compiled with these further flags.

    `header` comes before the text. Texts share it: it is parsed once for each set of flags.
    """
    parts = [header, text] if header else [text]
    path = _file(".so", *flags, *parts)
    with _locked(path):
        if not path.exists():
            source = path.with_suffix(".cc")
            source.write_text(text)
            included = ["-include", str(_precompiled(header, *flags))] if header else []
            _build(path, *FLAGS, *flags, *included, str(source))
            source.unlink()
            remove_old()
        path.touch()
        return ctypes.CDLL(str(path))


def _precompiled(header: str, *flags: str) -> Path:
    """Return a file with this text; beside it is its precompiled form, which g++ takes instead."""
    path = _file(".h", *flags, header)
    with _locked(path):
        parsed = path.with_suffix(".h.gch")
        if not (path.exists() and parsed.exists()):
            path.write_text(header)
            _build(parsed, *FLAGS, *flags, "-x", "c++-header", str(path))
        return path


def _file(suffix: str, *parts: str) -> Path:
    """Return a path in the cache that is named after a digest of these texts and flags."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr((compiler(), FLAGS, parts)).encode()).hexdigest()
    return FOLDER / f"{digest}{suffix}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let the first worker build a file for all."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(path: Path, *arguments: str) -> None:
    """Run g++ and rename its complete output to `path`."""
    partial = path.with_suffix(".partial")
    subprocess.run(["g++", *arguments, "-o", str(partial)], check=True)
    partial.replace(path)


def remove_old() -> None:
    """Remove files that no test has used for long."""
    oldest = time.time() - SECONDS_KEPT
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker may rename or remove it
            if path.stat().st_mtime < oldest:
                path.unlink()
