"""NVRTC, NVIDIA's run-time compiler, by ctypes: compiles CUDA C++ for one architecture.

It needs neither a GPU nor a driver. The library comes from the wheel ``nvidia-cuda-nvrtc`` or from
an installed CUDA toolkit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

from graphc.errors import DependencyError, GraphcError, to_install

OPTIONS = ("--std=c++17", "--fmad=false")
"""Compiler options. Products and sums are not contracted to fused multiply-adds, so that bits do
not depend on the structure of a kernel."""


class KernelError(GraphcError):
    """A kernel that does not compile; the message includes that of the compiler."""


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except (ImportError, RuntimeError):
        cure = to_install("nvidia-cuda-nvrtc cuda-pathfinder", "nvrtc")
        raise DependencyError(f"NVRTC was not found; {cure}") from None
    return ctypes.CDLL(str(path))


def version() -> tuple[int, int]:
    """Return the major and minor version of the library."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_cubin(text: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
    """Compile a text to machine code for an architecture such as 90.

    Raises `KernelError` with the message of the compiler, and `DependencyError` if NVRTC is not
    installed.
    """
    return _compile(text, (f"--gpu-architecture=sm_{architecture}", *options), "CUBIN")


def compile_ptx(text: str, architecture: int, options: Sequence[str] = OPTIONS) -> str:
    """Compile a text to PTX, the human-readable code before assembly."""
    arguments = (f"--gpu-architecture=compute_{architecture}", *options)
    return _compile(text, arguments, "PTX").rstrip(b"\0").decode()


def _compile(text: str, options: Sequence[str], kind: str) -> bytes:
    library, program = _library(), ctypes.c_void_p()
    source = ctypes.c_char_p(text.encode())
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source, b"graphc_kernels.cu", 0, None, None
        )
    )
    try:
        listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), listed):
            log = _fetch(program, "nvrtcGetProgramLog").rstrip(b"\0").decode()
            raise KernelError(f"a generated kernel does not compile ({' '.join(options)}):\n{log}")
        return _fetch(program, f"nvrtcGet{kind}")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(program: ctypes.c_void_p, getter: str) -> bytes:
    """Return the bytes that `getter` writes; the function `getter` + "Size" gives their number."""
    library, size = _library(), ctypes.c_size_t()
    _check(getattr(library, f"{getter}Size")(program, ctypes.byref(size)))
    found = ctypes.create_string_buffer(size.value)
    _check(getattr(library, getter)(program, found))
    return found.raw


def _check(status: int) -> None:
    if status:
        get = _library().nvrtcGetErrorString
        get.restype = ctypes.c_char_p
        raise GraphcError(f"NVRTC: {get(status).decode()}")
