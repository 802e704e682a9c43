"""The binding of cuBLASLt on a library that does on the CPU what cuBLASLt documents."""

import ctypes
from pathlib import Path

import numpy as np
from codegen import compiled
from codegen.on_cpu import aligned

from graphc.runtime.gpu.products import Products

SOURCE = Path(__file__).with_name("fake_cublas.cc")


def library() -> ctypes.CDLL:
    """Return the library."""
    return compiled.load(SOURCE.read_text(), "-O1")


class StandIn(Products):
    """A handle of the library, and a workspace."""

    def __init__(self, record=None) -> None:
        self.library = library()
        self.others = self.library.live_descriptors()
        super().__init__(self.library, record)
        self.workspace = aligned(np.full(1024, 7, np.uint8))

    @property
    def live(self) -> int:
        """The number of descriptors that were made since this handle, and not destroyed."""
        return self.library.live_descriptors() - self.others

    def run(self, call, addresses, workspace_bytes=1024) -> None:
        """Bind a product, run it and give it back."""
        space = self.workspace.ctypes.data
        with self.bind(call, addresses, space, workspace_bytes) as product:
            product.run(0)
