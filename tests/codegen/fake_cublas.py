"""The cuBLAS bindings on a library that does on the CPU what cuBLAS documents."""

import ctypes
import fcntl
import subprocess
from pathlib import Path

import numpy as np
from codegen.on_cpu import aligned

from graphc.runtime.gpu.cublas import Cublas, version
from graphc.runtime.gpu.cublaslt import CublasLt

SOURCE = Path(__file__).with_name("fake_cublas.cc")
WORKSPACE = 256


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


class LtStandIn(CublasLt):
    """A handle of the library's part with epilogues, and a workspace."""

    def __init__(self, folder: Path) -> None:
        self.library = library_in(folder)
        super().__init__(self.library)
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


class StandIn(Cublas):
    """A handle of the library that also runs products with an epilogue, by the other binding."""

    def __init__(self, folder: Path) -> None:
        super().__init__(library_in(folder))
        self.lt = LtStandIn(folder)

    def run(self, call, addresses) -> None:
        if call.epilogue == "none":
            super().run(call, addresses)
        else:
            self.lt.run(call, addresses)


def stand_in(folder: Path) -> StandIn:
    """A handle of the library."""
    assert version(library_in(folder)) == "13.14.15"
    handle = StandIn(folder)
    handle.use(0, WORKSPACE, 1024)
    return handle
