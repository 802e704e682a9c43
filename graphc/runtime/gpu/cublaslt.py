"""cuBLASLt by ctypes: matrix products with fused epilogues.

Numbers of attributes are those of cublasLt.h (`cublasLtMatmulDescAttributes_t`,
`cublasLtMatrixLayoutAttribute_t`, `cublasLtMatmulPreferenceAttributes_t`, `cublasLtEpilogue_t`),
unchanged since CUDA 11. A product is described once, when a program is bound. A step makes one call
for it, with the workspace and the stream as arguments, so it can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from graphc.codegen.node_calls import Buffer, Epilogue, Gemm, Matrix
from graphc.codegen.products.gemm import COMPUTE_64F, DATA_TYPES
from graphc.errors import DependencyError, GraphcError, to_install
from graphc.ir.types import float32, float64

EPILOGUES: Mapping[Epilogue, int] = {
    "none": 1, "bias": 4, "gelu": 32, "bias_gelu": 36, "sums": 512,
}  # fmt: skip
"""Values of `cublasLtEpilogue_t`. Its gelu is the tanh approximation; its name for `sums` is
BGRADB."""

DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER = 3, 4, 7, 8
DESC_SCALE_POINTERS = (17, 18)
"""Attributes of a product with the addresses of the factors of A and B, float32 on the device."""
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
PREF_MAX_WORKSPACE_BYTES, PREF_REDUCTION_SCHEME_MASK = 1, 3
PREF_MIN_ALIGNMENT_BYTES = (5, 6, 7, 8)
"""Attributes of a preference that bound the alignment of A, B, C and D."""

REDUCTION_IN_COMPUTE_TYPE = 2
"""The allowed reduction scheme of split-K: partial sums are kept in the workspace in the compute
type, and added in a separate step. The other schemes round partial sums, or let a counter determine
their order."""

PROMISED_ALIGNMENT = 16
"""The largest alignment in bytes that is promised for operands: that of the widest access."""

WORKSPACE_ALIGNMENT = 256

NOT_SUPPORTED = 15

STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR",
    NOT_SUPPORTED: "NOT_SUPPORTED",
}  # fmt: skip


class CublasError(GraphcError):
    """An error of cuBLASLt, or a record of algorithms that does not belong to it."""


class NoAlgorithm(CublasError):  # noqa: N818 - a limit of the library, no mistake
    """No algorithm of cuBLASLt supports a product."""


class Algorithm(ctypes.Structure):
    """The C structure `cublasLtMatmulAlgo_t`: opaque bytes that may be copied."""

    _fields_ = (("opaque", ctypes.c_uint64 * 8),)


class Heuristic(ctypes.Structure):
    """The C structure `cublasLtMatmulHeuristicResult_t`: an algorithm and its requirements."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def load_cublaslt() -> ctypes.CDLL:
    """Load cuBLASLt from its wheel or from CUDA; raises `DependencyError` if it is not found."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(str(load_nvidia_dynamic_lib("cublasLt").abs_path))
    except (ImportError, RuntimeError, OSError):
        cure = to_install("nvidia-cublas cuda-pathfinder", "gpu")
        raise DependencyError(f"cuBLASLt was not found; {cure}") from None


def version(library: ctypes.CDLL) -> str:
    """Return the major, minor and patch version of the library, separated by dots."""
    found = []
    for kind in range(3):
        number = ctypes.c_int()
        check(library, "cublasLtGetProperty", kind, ctypes.byref(number))
        found.append(str(number.value))
    return ".".join(found)


@dataclass(frozen=True, slots=True)
class MatrixPlacement:
    """The layout of an operand of a product.

    `leading` is its leading dimension, `stride` the elements from one matrix of the batch to the
    next, and `alignment` that of its address in bytes.
    """

    leading: int
    stride: int
    alignment: int


class LtProduct:
    """A matrix product of cuBLASLt: its descriptors.

    `complete` must be called before `run`.

    `close` frees the descriptors, as does leaving its ``with`` block.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: ctypes.c_void_p,
        call: Gemm,
        placements: Sequence[MatrixPlacement],
        bias: int | None,
        batch: int | None = None,
        factors: Sequence[int] = (),
    ) -> None:
        self._library, self._handle, self._call = library, handle, call
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        try:
            operation = self._operation(bias, factors)
            layouts = [
                self._layout(matrix, shape, each, call.batch if batch is None else batch)
                for matrix, shape, each in zip(
                    (call.first, call.second, call.c), shapes(call), placements, strict=True
                )
            ]
        except BaseException:
            self.close()
            raise
        self._described = (operation, *layouts, layouts[-1])  # D has the layout of C

    def first_choice(self, alignments: Sequence[int], workspace_bytes: int) -> Algorithm | None:
        """Return the library's first algorithm for operands with these alignments, or None."""
        preference = self._preference(alignments, workspace_bytes)
        found, count = Heuristic(), ctypes.c_int()
        status = self._library.cublasLtMatmulAlgoGetHeuristic(
            self._handle, *self._described, preference, 1, ctypes.byref(found), ctypes.byref(count)
        )
        if status and status != NOT_SUPPORTED:
            raise CublasError(f"cublasLtMatmulAlgoGetHeuristic: {status_name(status)}")
        if status or count.value < 1 or found.state:
            return None
        algorithm: Algorithm = found.algorithm
        return algorithm

    def takes(self, algorithm: Algorithm, workspace_bytes: int) -> bool:
        """Return True if the algorithm can compute the product within the workspace."""
        result = Heuristic()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, *self._described, ctypes.byref(algorithm), ctypes.byref(result)
        )
        return not status and not result.state and result.workspace_bytes <= workspace_bytes

    def complete(
        self, algorithm: Algorithm, places: Sequence[int], workspace: int, workspace_bytes: int
    ) -> None:
        """Set the algorithm and the addresses of operands and workspace, before `run`."""
        call = self._call
        scalar = ctypes.c_double if call.compute == COMPUTE_64F else ctypes.c_float
        self._kept = (scalar(call.alpha), scalar(call.beta), algorithm)
        alpha, beta, chosen = (ctypes.addressof(each) for each in self._kept)  # kept by `_kept`
        operation, a, b, c, d = self._described
        first, second, target = places
        self._arguments = (
            self._handle, operation, alpha, first, a, second, b, beta, target, c, target, d,
            chosen, workspace, workspace_bytes,
        )  # fmt: skip

    def run(self, stream: int) -> None:
        """Enqueue the product on a stream."""
        check(self._library, "cublasLtMatmul", *self._arguments, stream)

    def close(self) -> None:
        """Destroy the descriptors of the product."""
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

    def _operation(self, bias: int | None, factors: Sequence[int]) -> ctypes.c_void_p:
        call = self._call
        scale = DATA_TYPES[float64 if call.compute == COMPUTE_64F else float32]
        operation = self._make("MatmulDesc", call.compute, scale)
        self._set("MatmulDesc", operation, DESC_TRANSA, ctypes.c_int32(call.transpose_first))
        self._set("MatmulDesc", operation, DESC_TRANSB, ctypes.c_int32(call.transpose_second))
        epilogue = ctypes.c_uint32(EPILOGUES[call.epilogue])
        self._set("MatmulDesc", operation, DESC_EPILOGUE, epilogue)
        if bias is not None:
            self._set("MatmulDesc", operation, DESC_BIAS_POINTER, ctypes.c_void_p(bias))
        for attribute, factor in zip(DESC_SCALE_POINTERS, factors, strict=False):
            self._set("MatmulDesc", operation, attribute, ctypes.c_void_p(factor))
        return operation

    def _layout(
        self, matrix: Matrix, shape: tuple[int, int], placements: MatrixPlacement, batch: int
    ) -> ctypes.c_void_p:
        layout = self._make("MatrixLayout", DATA_TYPES[matrix.dtype], *shape, placements.leading)
        if batch > 1:
            count, stride = ctypes.c_int32(batch), ctypes.c_int64(placements.stride)
            self._set("MatrixLayout", layout, LAYOUT_BATCH_COUNT, count)
            self._set("MatrixLayout", layout, LAYOUT_STRIDED_BATCH_OFFSET, stride)
        return layout

    def _preference(self, alignments: Sequence[int], workspace_bytes: int) -> ctypes.c_void_p:
        """Create the preference: limits of an algorithm, for these alignments of A, B and C."""
        preference = self._make("MatmulPreference")
        limit = ctypes.c_uint64(workspace_bytes)
        self._set("MatmulPreference", preference, PREF_MAX_WORKSPACE_BYTES, limit)
        scheme = ctypes.c_uint32(REDUCTION_IN_COMPUTE_TYPE)
        self._set("MatmulPreference", preference, PREF_REDUCTION_SCHEME_MASK, scheme)
        for attribute, alignment in zip(
            PREF_MIN_ALIGNMENT_BYTES, (*alignments, alignments[-1]), strict=True
        ):
            self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
        return preference

    def _make(self, kind: str, *arguments: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        check(self._library, f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
        self._made.append((kind, made))
        return made

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        function = f"cublasLt{kind}SetAttribute"
        check(self._library, function, made, attribute, ctypes.byref(value), ctypes.sizeof(value))


def shapes(call: Gemm) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of A, B and C as they are stored."""
    first = (call.k, call.m) if call.transpose_first else (call.m, call.k)
    second = (call.n, call.k) if call.transpose_second else (call.k, call.n)
    return first, second, (call.m, call.n)


def aligned(address: int) -> int:
    """Return the largest power of two that divides an address, at most `PROMISED_ALIGNMENT`."""
    return min(PROMISED_ALIGNMENT, address & -address) or PROMISED_ALIGNMENT


def located(matrix: Matrix, addresses: Mapping[Buffer, int]) -> int:
    """Return the address of an operand of a call."""
    return addresses[matrix.buffer] + matrix.offset * matrix.dtype.itemsize


def check(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the library; raises `CublasError` for any status but success."""
    status = getattr(library, function)(*arguments)
    if status:
        raise CublasError(f"{function}: {status_name(status)}")


def status_name(status: int) -> str:
    """Return the library's name of a status."""
    return STATUS.get(status, f"status {status}")


def declare(library: ctypes.CDLL) -> None:
    """Declare argument types: the defaults of ctypes do not fit addresses and 64-bit numbers."""
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
    library.cublasLtGetProperty.argtypes = [number, pointer]
    objects: list[Any] = [pointer] * 7
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [*objects, number, pointer, pointer]
    library.cublasLtMatmulAlgoCheck.argtypes = [pointer] * 8
    library.cublasLtMatmul.argtypes = [*objects, *objects, size, pointer]
