"""cuBLAS by ctypes: a handle with its own workspace, and one call for every product.

CuPy's own handle can neither be captured into a CUDA graph nor given a workspace. One handle serves
all streams of a program: stream and workspace are set before every product, in this order, as
cuBLAS forgets the workspace with the stream. Each node has a workspace of its own in the plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from graphc.codegen.node_calls import Buffer, Gemm, Matrix
from graphc.codegen.products.gemm import COMPUTE_64F, DATA_TYPES
from graphc.errors import DependencyError, GraphcError, to_install

DEFAULT_ALGORITHM = -1

DISALLOW_REDUCED_PRECISION_REDUCTION = 16
"""cublasMath_t: partial sums of 16-bit products stay float32."""

NOT_SUPPORTED = 15

STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR",
    NOT_SUPPORTED: "NOT_SUPPORTED",
}  # fmt: skip


class CublasError(GraphcError):
    """cuBLAS refused a call; the message holds its status."""


def load_cublas(name: str = "cublas") -> ctypes.CDLL:
    """The library of the wheel or the toolkit, or ``cublasLt``, which comes with it.

    Raises `DependencyError` where there is none.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(str(load_nvidia_dynamic_lib(name).abs_path))
    except (ImportError, RuntimeError, OSError):
        cure = to_install("nvidia-cublas cuda-pathfinder", "gpu")
        raise DependencyError(f"cuBLAS was not found; {cure}") from None


def version(library: ctypes.CDLL) -> str:
    """The major, minor and patch version of the library."""
    found = []
    for kind in range(3):
        number = ctypes.c_int()
        if library.cublasGetProperty(kind, ctypes.byref(number)):
            raise CublasError("cublasGetProperty gives no version")
        found.append(str(number.value))
    return ".".join(found)


class Cublas:
    """A handle of cuBLAS; `library` has the C functions of version 12 or later."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._declare()
        self._handle = ctypes.c_void_p()
        self._check("cublasCreate_v2", ctypes.byref(self._handle))
        self._check("cublasSetMathMode", self._handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
        self._scalars = {kind: (kind(0.0), kind(1.0)) for kind in (ctypes.c_float, ctypes.c_double)}

    def _declare(self) -> None:
        pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
        matrix: tuple[Any, ...] = (pointer, number, size, size)
        extents = (pointer, number, number, size, size, size)
        product = (*extents, pointer, *matrix, *matrix, pointer, *matrix, size, number, number)
        self._library.cublasGemmStridedBatchedEx_64.argtypes = product
        self._library.cublasSetStream_v2.argtypes = [pointer, pointer]
        self._library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
        self._library.cublasDestroy_v2.argtypes = [pointer]

    def use(self, stream: int, workspace: int, workspace_bytes: int) -> None:
        """Run on a stream with a workspace at a device address that is a multiple of 256."""
        if workspace % 256:
            raise CublasError(f"a workspace must be aligned to 256 bytes, got {workspace:#x}")
        self._check("cublasSetStream_v2", self._handle, stream)
        self._check("cublasSetWorkspace_v2", self._handle, workspace, workspace_bytes)

    def run(self, call: Gemm, addresses: Mapping[Buffer, int]) -> None:
        """Enqueue a product on buffers at these device addresses; alpha is 1.

        Raises `CublasError` for one with an epilogue: those are `graphc.runtime.gpu.cublaslt`'s.
        """
        if call.epilogue != "none":
            raise CublasError(f"cuBLAS has no epilogue {call.epilogue!r}; use cuBLASLt")
        scalar = ctypes.c_double if call.compute == COMPUTE_64F else ctypes.c_float
        zero, one = self._scalars[scalar]
        self._check(
            "cublasGemmStridedBatchedEx_64",
            self._handle,
            int(call.transpose_first),
            int(call.transpose_second),
            call.m,
            call.n,
            call.k,
            ctypes.addressof(one),
            *located(call.first, addresses),
            *located(call.second, addresses),
            ctypes.addressof(one if call.beta else zero),
            *located(call.c, addresses),
            call.batch,
            call.compute,
            DEFAULT_ALGORITHM,
        )

    def close(self) -> None:
        """Give the handle back."""
        if self._handle:
            self._check("cublasDestroy_v2", self._handle)
            self._handle = ctypes.c_void_p()

    def _check(self, function: str, *arguments: object) -> None:
        check(self._library, function, *arguments)


def check(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of cuBLAS or cuBLASLt; raises `CublasError` for any status but success."""
    status = getattr(library, function)(*arguments)
    if status:
        raise CublasError(f"{function}: {status_name(status)}")


def status_name(status: int) -> str:
    """The name that a library has for a status."""
    return STATUS.get(status, f"status {status}")


def located(matrix: Matrix, addresses: Mapping[Buffer, int]) -> tuple[int, int, int, int]:
    """The address, data type, leading dimension and stride of an operand of a call."""
    address = addresses[matrix.buffer] + matrix.offset * matrix.dtype.itemsize
    return address, DATA_TYPES[matrix.dtype], matrix.leading, matrix.stride
