"""An emulated GPU in the place of the real one, sound or with a fault."""

from __future__ import annotations

import sys

from on_gpu.conftest import broken
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import H200, EmulatedDevice

from graphc.runtime import bind


def emulate(fault: str) -> None:
    """Let graphc find an emulated GPU and the stand-in for cuDNN.

    The fault ``kernel`` makes kernels write wrong numbers, ``version`` makes the frontend too old.
    """
    sys.modules["cudnn"] = fake_cudnn
    if fault == "version":
        fake_cudnn.__version__ = "1.10.0"
    bind.find_gpu = lambda number: H200  # type: ignore[assignment]
    bind.CudaDevice = lambda *given: EmulatedDevice(  # type: ignore[assignment, misc]
        edit=broken if fault == "kernel" else lambda text: text
    )
