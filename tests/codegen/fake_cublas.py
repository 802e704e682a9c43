"""The cuBLAS binding on a library that does on the CPU what cuBLAS documents."""

import ctypes
import subprocess
from pathlib import Path

from graphc.runtime.gpu.cublas import Cublas, version

SOURCE = Path(__file__).with_name("fake_cublas.cc")
WORKSPACE = 256


def stand_in(folder: Path) -> Cublas:
    """A handle of the library, built in a folder."""
    path = folder / "libfake.so"
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(path))
    assert version(library) == "13.14.15"
    handle = Cublas(library)
    handle.use(0, WORKSPACE, 1024)
    return handle
