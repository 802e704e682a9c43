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
from pathlib import Path

from graphc.runtime.kernel_files import cache_folder

FOLDER = (cache_folder() or Path(tempfile.gettempdir()) / "graphc" / "kernels").with_name("tests")
FLAGS = ("-std=c++17", "-fPIC", "-shared")
SECONDS_KEPT = 30 * 24 * 3600


@functools.cache
def compiler() -> str:
    """Return the compiler's name and version."""
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


def load(text: str, *flags: str) -> ctypes.CDLL:
    """Return a C++ text as a shared library, compiled with these further flags."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(repr((compiler(), FLAGS, flags, text)).encode()).hexdigest()
    path = FOLDER / f"{digest}.so"
    with (FOLDER / f"{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker builds it for all
        if not path.exists():
            source, built = path.with_suffix(".cc"), path.with_suffix(".partial")
            source.write_text(text)
            subprocess.run(["g++", *FLAGS, *flags, str(source), "-o", str(built)], check=True)
            source.unlink()
            built.replace(path)
            remove_old()
        path.touch()
        return ctypes.CDLL(str(path))


def remove_old() -> None:
    """Remove files that no test has used for long."""
    oldest = time.time() - SECONDS_KEPT
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another worker may rename or remove it
            if path.stat().st_mtime < oldest:
                path.unlink()
