"""cuBLASLt by ctypes: products with an epilogue, which adds a bias and applies an activation.

Numbers of attributes are those of cublasLt.h (cublasLtMatmulDescAttributes_t,
cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t, cublasLtEpilogue_t), the same
since CUDA 11. A product is described once, when a program is bound; a step makes one call for it,
with the workspace and the stream as arguments, so it can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from graphc.codegen.node_calls import Buffer, Epilogue, Gemm, Matrix
from graphc.codegen.products.gemm import COMPUTE_64F, DATA_TYPES
from graphc.ir.types import DType, float32, float64
from graphc.runtime.gpu.cublas import NOT_SUPPORTED, CublasError, check, located, status_name

EPILOGUES: Mapping[Epilogue, int] = {
    "none": 1, "relu": 2, "bias": 4, "bias_relu": 6, "gelu": 32, "bias_gelu": 36,
}  # fmt: skip
"""Values of `cublasLtEpilogue_t`, whose gelu is the approximation by tanh."""

DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER = 3, 4, 7, 8
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
PREF_MAX_WORKSPACE_BYTES, PREF_REDUCTION_SCHEME_MASK = 1, 3
PREF_MIN_ALIGNMENT_BYTES = (5, 6, 7, 8)
"""Attributes of a preference that bound the alignment of A, B, C and D."""

REDUCTION_IN_COMPUTE_TYPE = 2
"""Parts of a long inner axis may be summed apart, but only in the workspace, unrounded, and in a
step of its own: the other schemes round, or leave the order of the parts to a counter."""

PROMISED_ALIGNMENT = 16
"""What is promised of operands at most: the widest access. Which algorithm is chosen, and so the
bits of the result, then do not depend on where in its arena a plan puts them."""

WORKSPACE_ALIGNMENT = 256


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, and may be copied."""

    _fields_ = (("opaque", ctypes.c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class NoAlgorithm(CublasError):  # noqa: N818 - a limit of the library, no mistake
    """cuBLASLt does not serve a product as it is asked for."""


class CublasLt:
    """A handle of cuBLASLt; `library` has the C functions of version 12 or later."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        _declare(library)
        self._handle = ctypes.c_void_p()
        check(library, "cublasLtCreate", ctypes.byref(self._handle))

    def bind(
        self, call: Gemm, addresses: Mapping[Buffer, int], workspace: int, workspace_bytes: int
    ) -> LtProduct:
        """A product on buffers at these device addresses, with a workspace of its own.

        The library's first choice of an algorithm that needs no more than the workspace is kept.
        Raises `NoAlgorithm` where there is none.
        """
        if workspace % WORKSPACE_ALIGNMENT:
            raise CublasError(f"a workspace must be aligned to 256 bytes, got {workspace:#x}")
        return LtProduct(self._library, self._handle, call, addresses, (workspace, workspace_bytes))

    def close(self) -> None:
        """Give the handle back."""
        if self._handle:
            check(self._library, "cublasLtDestroy", self._handle)
            self._handle = ctypes.c_void_p()


class LtProduct:
    """A product that is ready to run; `close` it, or leave its ``with`` block."""

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: ctypes.c_void_p,
        call: Gemm,
        addresses: Mapping[Buffer, int],
        workspace: tuple[int, int],
    ) -> None:
        self._library = library
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        try:
            operation = self._operation(call)
            a, b, c = self._layouts(call)
            places = [located(m, addresses)[0] for m in (call.first, call.second, call.c)]
            algorithm = self._algorithm(
                handle, operation, (a, b, c), places, call, addresses, workspace[1]
            )
        except BaseException:
            self.close()
            raise
        scalar = ctypes.c_double if call.compute == COMPUTE_64F else ctypes.c_float
        self._kept = (scalar(1.0), scalar(call.beta), algorithm)  # the call holds their addresses
        alpha, beta, chosen = (ctypes.addressof(each) for each in self._kept)
        first, second, target = places
        self._arguments = (
            handle, operation, alpha, first, a, second, b, beta, target, c, target, c,
            chosen, *workspace,
        )  # fmt: skip

    def run(self, stream: int) -> None:
        """Enqueue the product on a stream."""
        check(self._library, "cublasLtMatmul", *self._arguments, stream)

    def close(self) -> None:
        """Give the descriptors back."""
        while self._made:
            kind, made = self._made.pop()
            check(self._library, f"cublasLt{kind}Destroy", made)

    def __enter__(self) -> LtProduct:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _operation(self, call: Gemm) -> ctypes.c_void_p:
        """A descriptor of what to compute, all but the place of the bias."""
        is_double = call.compute == COMPUTE_64F
        scale = DATA_TYPES[float64 if is_double else float32]
        operation = self._make("MatmulDesc", call.compute, scale)
        self._set("MatmulDesc", operation, DESC_TRANSA, ctypes.c_int32(call.transpose_first))
        self._set("MatmulDesc", operation, DESC_TRANSB, ctypes.c_int32(call.transpose_second))
        epilogue = ctypes.c_uint32(EPILOGUES[call.epilogue])
        self._set("MatmulDesc", operation, DESC_EPILOGUE, epilogue)
        return operation

    def _layouts(self, call: Gemm) -> list[ctypes.c_void_p]:
        """Descriptors of how A, B and C lie; D lies as C does."""
        first = (call.k, call.m) if call.transpose_first else (call.m, call.k)
        second = (call.n, call.k) if call.transpose_second else (call.k, call.n)
        shapes = (first, second, (call.m, call.n))
        matrices = (call.first, call.second, call.c)
        return [
            self._layout(matrix, shape, call.batch)
            for matrix, shape in zip(matrices, shapes, strict=True)
        ]

    def _layout(self, matrix: Matrix, shape: tuple[int, int], batch: int) -> ctypes.c_void_p:
        layout = self._make("MatrixLayout", DATA_TYPES[matrix.dtype], *shape, matrix.leading)
        if batch > 1:
            count, stride = ctypes.c_int32(batch), ctypes.c_int64(matrix.stride)
            self._set("MatrixLayout", layout, LAYOUT_BATCH_COUNT, count)
            self._set("MatrixLayout", layout, LAYOUT_STRIDED_BATCH_OFFSET, stride)
        return layout

    def _algorithm(
        self,
        handle: ctypes.c_void_p,
        operation: ctypes.c_void_p,
        layouts: tuple[ctypes.c_void_p, ...],
        places: list[int],
        call: Gemm,
        addresses: Mapping[Buffer, int],
        workspace_bytes: int,
    ) -> Algorithm:
        """The library's first choice; the bias gets its place behind that.

        While it chooses, the library reads the alignment of the bias, and nothing else, from its
        address: an address that is no more aligned than is promised stands for it.
        """
        a, b, c = layouts
        if call.bias is not None:
            bias = addresses[call.bias]
            self._set("MatmulDesc", operation, DESC_BIAS_POINTER, ctypes.c_void_p(_aligned(bias)))
        preference = self._preference(places, workspace_bytes)
        found, count = Heuristic(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, a, b, c, c, preference, 1, ctypes.byref(found), ctypes.byref(count)
        )
        if status and status != NOT_SUPPORTED:
            raise CublasError(f"cublasLtMatmulAlgoGetHeuristic: {status_name(status)}")
        if status or count.value < 1 or found.state:
            raise NoAlgorithm(
                f"cuBLASLt has no algorithm for {_shown(call)} within a workspace of "
                f"{workspace_bytes} bytes"
            )
        if call.bias is not None:
            self._set("MatmulDesc", operation, DESC_BIAS_POINTER, ctypes.c_void_p(bias))
        algorithm: Algorithm = found.algorithm
        return algorithm

    def _preference(self, places: list[int], workspace_bytes: int) -> ctypes.c_void_p:
        """A descriptor of what an algorithm may use and rely on, for A, B and C at these places."""
        preference = self._make("MatmulPreference")
        limit = ctypes.c_uint64(workspace_bytes)
        self._set("MatmulPreference", preference, PREF_MAX_WORKSPACE_BYTES, limit)
        scheme = ctypes.c_uint32(REDUCTION_IN_COMPUTE_TYPE)
        self._set("MatmulPreference", preference, PREF_REDUCTION_SCHEME_MASK, scheme)
        for attribute, place in zip(PREF_MIN_ALIGNMENT_BYTES, (*places, places[-1]), strict=True):
            alignment = ctypes.c_uint32(_aligned(place))
            self._set("MatmulPreference", preference, attribute, alignment)
        return preference

    def _make(self, kind: str, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        check(self._library, f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        function = f"cublasLt{kind}SetAttribute"
        check(self._library, function, made, attribute, ctypes.byref(value), ctypes.sizeof(value))


def _aligned(address: int) -> int:
    """The power of two that divides an address, at most `PROMISED_ALIGNMENT`."""
    return min(PROMISED_ALIGNMENT, address & -address) or PROMISED_ALIGNMENT


def _shown(call: Gemm) -> str:
    dtype: DType = call.first.dtype
    return f"a {dtype.name} product (m {call.m}, n {call.n}, k {call.k}, epilogue {call.epilogue})"


def _declare(library: ctypes.CDLL) -> None:
    """Types of the arguments: addresses and 64-bit numbers do not fit what ctypes guesses."""
    pointer, number, wide, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
    for kind, arguments in (
        ("MatmulDesc", [number, number]),
        ("MatrixLayout", [number, ctypes.c_uint64, ctypes.c_uint64, wide]),
        ("MatmulPreference", []),
    ):
        getattr(library, f"cublasLt{kind}Create").argtypes = [pointer, *arguments]
        getattr(library, f"cublasLt{kind}Destroy").argtypes = [pointer]
        getattr(library, f"cublasLt{kind}SetAttribute").argtypes = [pointer, number, pointer, size]
    library.cublasLtCreate.argtypes = [pointer]
    library.cublasLtDestroy.argtypes = [pointer]
    objects: list[Any] = [pointer] * 7
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [*objects, number, pointer, pointer]
    library.cublasLtMatmul.argtypes = [*objects, *objects, size, pointer]
