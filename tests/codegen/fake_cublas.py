"""The binding of cuBLASLt on a library that does on the CPU what cuBLASLt documents."""

import ctypes
import fcntl
import subprocess
from pathlib import Path

import numpy as np
from codegen.on_cpu import aligned

from graphc.runtime.gpu.products import Products

SOURCE = Path(__file__).with_name("fake_cublas.cc")


def library_in(folder: Path) -> ctypes.CDLL:
    """The library, built in a folder unless it is there."""
    path = folder / "libfake.so"
    with (folder / "libfake.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker builds it for all
        if not path.exists():
            built = folder / "libfake.partial"
            command = [
                "g++",
                "-std=c++17",
                "-O1",
                "-fPIC",
                "-shared",
                str(SOURCE),
                "-o",
                str(built),
            ]
            subprocess.run(command, check=True)
            built.replace(path)
    return ctypes.CDLL(str(path))


class StandIn(Products):
    """A handle of the library, and a workspace."""

    def __init__(self, folder: Path, record=None) -> None:
        self.library = library_in(folder)
        super().__init__(self.library, record)
        self.workspace = aligned(np.full(1024, 7, np.uint8))

    @property
    def live(self) -> int:
        """Descriptors that were made and not destroyed."""
        return self.library.live_descriptors()

    def run(self, call, addresses, workspace_bytes=1024) -> None:
        """Bind a product, run it and give it back."""
        space = self.workspace.ctypes.data
        with self.bind(call, addresses, space, workspace_bytes) as product:
            product.run(0)
