"""Kernels for a GPU as machine code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from graphc.codegen.text.kernel import Kernel, module_text
from graphc.runtime.gpu.nvrtc import OPTIONS, compile_cubin, version
from graphc.runtime.kernel_files import machine_code


def cubins(kernels: Iterable[Kernel], architecture: int, folder: Path | None) -> dict[str, bytes]:
    """The machine code of each kernel by name; what is not in `folder` is compiled, and kept there.

    None keeps nothing. Raises `KernelError` where a kernel does not compile.
    """
    texts = {kernel.name: module_text([kernel]) for kernel in kernels}
    # NVRTC runs without Python's lock, so threads compile at the same time.
    return machine_code(
        texts,
        (architecture, OPTIONS, version()),
        "cubin",
        folder,
        lambda text: compile_cubin(text, architecture),
    )
