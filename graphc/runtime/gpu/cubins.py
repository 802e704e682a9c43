"""Compilation of kernels to machine code for a GPU, with a cache on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from graphc.codegen.text.kernel import Kernel, module_text
from graphc.runtime.gpu.nvrtc import OPTIONS, compile_cubin, version
from graphc.runtime.kernel_files import machine_code


def cubins(kernels: Iterable[Kernel], architecture: int, folder: Path | None) -> dict[str, bytes]:
    """Return the machine code of each kernel by name, compiling and caching what `folder` lacks.

    Without a folder, nothing is cached. Raises `KernelError` if a kernel does not compile.
    """
    texts = {kernel.name: module_text([kernel]) for kernel in kernels}
    # NVRTC runs without Python's global lock, so threads compile concurrently.
    return machine_code(
        texts,
        (architecture, OPTIONS, version()),
        "cubin",
        folder,
        lambda text: compile_cubin(text, architecture),
    )
