"""cuBLASLt by ctypes: all matrix products of a step, and what is done to them as they are written.

Numbers of attributes are those of cublasLt.h (cublasLtMatmulDescAttributes_t,
cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t, cublasLtEpilogue_t), the same
since CUDA 11. A product is described once, when a program is bound; a step makes one call for it,
with the workspace and the stream as arguments, so it can be captured into a CUDA graph.

Which algorithm computes a product decides the bits of the result. So it is chosen for the product
as it would lie in one piece, whatever the plan does with its operands, and once: a record of the
choices makes the same ones again in a later run.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from graphc.codegen.node_calls import Buffer, Epilogue, Gemm, Matrix
from graphc.codegen.products.gemm import COMPUTE_64F, DATA_TYPES
from graphc.errors import DependencyError, GraphcError, to_install
from graphc.ir.types import float32, float64, padded_extent
from graphc.runtime.gpu.records import recorded

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
"""What is promised of operands at most: the widest access."""

WORKSPACE_ALIGNMENT = 256

ALGORITHM = re.compile("[0-9a-f]{128}")
"""An algorithm as a record holds it: its 64 bytes."""

NOT_SUPPORTED = 15

STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR",
    NOT_SUPPORTED: "NOT_SUPPORTED",
}  # fmt: skip


class CublasError(GraphcError):
    """cuBLASLt refused a call, or a record of its algorithms does not belong to it."""


class NoAlgorithm(CublasError):  # noqa: N818 - a limit of the library, no mistake
    """cuBLASLt does not serve a product as it is asked for."""


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


def load_cublaslt() -> ctypes.CDLL:
    """The library of the wheel or the toolkit; raises `DependencyError` where there is none."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(str(load_nvidia_dynamic_lib("cublasLt").abs_path))
    except (ImportError, RuntimeError, OSError):
        cure = to_install("nvidia-cublas cuda-pathfinder", "gpu")
        raise DependencyError(f"cuBLASLt was not found; {cure}") from None


def version(library: ctypes.CDLL) -> str:
    """The major, minor and patch version of the library."""
    found = []
    for kind in range(3):
        number = ctypes.c_int()
        check(library, "cublasLtGetProperty", kind, ctypes.byref(number))
        found.append(str(number.value))
    return ".".join(found)


@dataclass(frozen=True, slots=True)
class Lying:
    """How an operand of a product lies: its leading dimension and the elements from one matrix of
    the batch to the next, and the bytes by which it is aligned."""

    leading: int
    stride: int
    alignment: int


class CublasLt:
    """A handle of cuBLASLt; `library` has the C functions of version 12 or later.

    `record` is what `record` gave in an earlier run; raises `CublasError` for one of another
    version.
    """

    def __init__(self, library: ctypes.CDLL, record: Mapping[str, Any] | None = None) -> None:
        self._library = library
        _declare(library)
        self._version = version(library)
        self._algorithms: dict[str, str | None] = recorded(
            record, "algorithms", "cuBLASLt", self._version, CublasError
        )
        for key, kept in self._algorithms.items():
            if not (kept is None or (isinstance(kept, str) and ALGORITHM.fullmatch(kept))):
                raise CublasError(
                    f"the record of algorithms has {kept!r} for {key!r}, which is no algorithm; "
                    "drop the record"
                )
        self._given = frozenset(self._algorithms)
        self._handle = ctypes.c_void_p()
        check(library, "cublasLtCreate", ctypes.byref(self._handle))

    @property
    def record(self) -> dict[str, Any]:
        """The algorithm of each product so far, None where there was none: JSON."""
        return {"cublaslt": self._version, "algorithms": dict(self._algorithms)}

    def bind(
        self, call: Gemm, addresses: Mapping[Buffer, int], workspace: int, workspace_bytes: int
    ) -> LtProduct:
        """A product on buffers at these device addresses, with a workspace of its own.

        Its algorithm is the library's first choice, among those that need no more than the
        workspace, for the product in one piece; a product that lies less aligned than that, so that
        no such algorithm can read it, gets one of its own. Raises `NoAlgorithm` where there is
        none, and `CublasError` for a recorded one that this GPU does not have.
        """
        if workspace % WORKSPACE_ALIGNMENT:
            raise CublasError(f"a workspace must be aligned to 256 bytes, got {workspace:#x}")
        places = [located(matrix, addresses) for matrix in (call.first, call.second, call.c)]
        bias = None if call.bias is None else addresses[call.bias]
        lies = tuple(
            Lying(_leading(matrix, *shape), matrix.stride, _aligned(place))
            for matrix, shape, place in zip(
                (call.first, call.second, call.c), _shapes(call), places, strict=True
            )
        )
        product = LtProduct(self._library, self._handle, call, lies, bias)
        try:
            algorithm = self._fitting(product, call, lies, _aligned(bias or 0), workspace_bytes)
            product.complete(algorithm, places, workspace, workspace_bytes)
        except BaseException:
            product.close()
            raise
        return product

    def _fitting(
        self,
        product: LtProduct,
        call: Gemm,
        lies: Sequence[Lying],
        bias_alignment: int,
        workspace_bytes: int,
    ) -> Algorithm:
        """The algorithm for the product in one piece where it takes that, else one of its own."""
        asked = [(lies, bias_alignment)]
        usual = _usual(call)
        if _is_as_aligned(call, lies, usual) and bias_alignment == PROMISED_ALIGNMENT:
            asked.insert(0, (usual, PROMISED_ALIGNMENT))
        for each in asked:
            key = signature(call, *each, workspace_bytes)
            algorithm = self._algorithm(key, call, *each, workspace_bytes)
            if algorithm is not None and product.takes(algorithm, workspace_bytes):
                return algorithm
            if algorithm is not None and key in self._given:
                raise CublasError(
                    f"the algorithm that is recorded for {shown(call)} is not to be had; is this "
                    "another GPU? drop the record"
                )
        raise NoAlgorithm(
            f"cuBLASLt has no algorithm for {shown(call)} within a workspace of "
            f"{workspace_bytes} bytes"
        )

    def _algorithm(
        self,
        key: str,
        call: Gemm,
        lies: Sequence[Lying],
        bias_alignment: int,
        workspace_bytes: int,
    ) -> Algorithm | None:
        """The recorded choice for a product that lies so, or the library's first, which is
        recorded under its signature."""
        if key not in self._algorithms:
            found = self._choose(call, lies, bias_alignment, workspace_bytes)
            self._algorithms[key] = None if found is None else bytes(found).hex()
        kept = self._algorithms[key]
        return None if kept is None else Algorithm.from_buffer_copy(bytes.fromhex(kept))

    def _choose(
        self, call: Gemm, lies: Sequence[Lying], bias_alignment: int, workspace_bytes: int
    ) -> Algorithm | None:
        """The library's first choice for all products of a node at once.

        While it chooses, the library reads the alignment of the bias, and nothing else, from its
        address: a number that is so aligned stands for it.
        """
        bias = None if call.bias is None else bias_alignment
        with LtProduct(self._library, self._handle, call, lies, bias, call.all_batches) as asked:
            return asked.first_choice([each.alignment for each in lies], workspace_bytes)

    def close(self) -> None:
        """Give the handle back."""
        if self._handle:
            check(self._library, "cublasLtDestroy", self._handle)
            self._handle = ctypes.c_void_p()


class LtProduct:
    """Descriptors of a product, and, once `complete`, what runs it.

    `close` it, or leave its ``with`` block.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        handle: ctypes.c_void_p,
        call: Gemm,
        lies: Sequence[Lying],
        bias: int | None,
        batch: int | None = None,
    ) -> None:
        self._library, self._handle, self._call = library, handle, call
        self._made: list[tuple[str, ctypes.c_void_p]] = []
        try:
            operation = self._operation(bias)
            layouts = [
                self._layout(matrix, shape, each, call.batch if batch is None else batch)
                for matrix, shape, each in zip(
                    (call.first, call.second, call.c), _shapes(call), lies, strict=True
                )
            ]
        except BaseException:
            self.close()
            raise
        self._described = (operation, *layouts, layouts[-1])  # D lies as C does

    def first_choice(self, alignments: Sequence[int], workspace_bytes: int) -> Algorithm | None:
        """The library's first algorithm for operands that are so aligned; None without any."""
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
        """Whether the product can be computed so within such a workspace."""
        result = Heuristic()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, *self._described, ctypes.byref(algorithm), ctypes.byref(result)
        )
        return not status and not result.state and result.workspace_bytes <= workspace_bytes

    def complete(
        self, algorithm: Algorithm, places: Sequence[int], workspace: int, workspace_bytes: int
    ) -> None:
        """Get ready to run on operands at these addresses."""
        call = self._call
        scalar = ctypes.c_double if call.compute == COMPUTE_64F else ctypes.c_float
        self._kept = (scalar(call.alpha), scalar(call.beta), algorithm)
        alpha, beta, chosen = (ctypes.addressof(each) for each in self._kept)  # held by `_kept`
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

    def _operation(self, bias: int | None) -> ctypes.c_void_p:
        call = self._call
        scale = DATA_TYPES[float64 if call.compute == COMPUTE_64F else float32]
        operation = self._make("MatmulDesc", call.compute, scale)
        self._set("MatmulDesc", operation, DESC_TRANSA, ctypes.c_int32(call.transpose_first))
        self._set("MatmulDesc", operation, DESC_TRANSB, ctypes.c_int32(call.transpose_second))
        epilogue = ctypes.c_uint32(EPILOGUES[call.epilogue])
        self._set("MatmulDesc", operation, DESC_EPILOGUE, epilogue)
        if bias is not None:
            self._set("MatmulDesc", operation, DESC_BIAS_POINTER, ctypes.c_void_p(bias))
        return operation

    def _layout(
        self, matrix: Matrix, shape: tuple[int, int], lies: Lying, batch: int
    ) -> ctypes.c_void_p:
        layout = self._make("MatrixLayout", DATA_TYPES[matrix.dtype], *shape, lies.leading)
        if batch > 1:
            count, stride = ctypes.c_int32(batch), ctypes.c_int64(lies.stride)
            self._set("MatrixLayout", layout, LAYOUT_BATCH_COUNT, count)
            self._set("MatrixLayout", layout, LAYOUT_STRIDED_BATCH_OFFSET, stride)
        return layout

    def _preference(self, alignments: Sequence[int], workspace_bytes: int) -> ctypes.c_void_p:
        """A descriptor of what an algorithm may use and rely on, for A, B and C aligned so."""
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


def signature(call: Gemm, lies: Sequence[Lying], bias_alignment: int, workspace_bytes: int) -> str:
    """A text for a product, how it lies and the room for it, equal for equal ones only."""
    matrices = (call.first, call.second, call.c)
    operands = " ".join(
        f"{matrix.dtype}:{each.leading}:{each.stride}:{each.alignment}"
        for matrix, each in zip(matrices, lies, strict=True)
    )
    letters = "".join("NT"[flag] for flag in (call.transpose_first, call.transpose_second))
    return (
        f"{letters} {call.m}x{call.n}x{call.k} batch={call.all_batches} {operands} "
        f"compute={call.compute} {call.epilogue}"
        + (f":{bias_alignment}" if call.bias is not None else "")
        + f" room={workspace_bytes}"
    )


def shown(call: Gemm) -> str:
    """A product as a message names it."""
    return (
        f"a {call.first.dtype} product (m {call.m}, n {call.n}, k {call.k}, epilogue "
        f"{call.epilogue})"
    )


def _shapes(call: Gemm) -> tuple[tuple[int, int], ...]:
    """Rows and columns of A, B and C as they are stored."""
    first = (call.k, call.m) if call.transpose_first else (call.m, call.k)
    second = (call.n, call.k) if call.transpose_second else (call.k, call.n)
    return first, second, (call.m, call.n)


def _leading(matrix: Matrix, rows: int, columns: int) -> int:
    """The leading dimension; a matrix of one column has any, so one with padding."""
    return matrix.leading if columns > 1 else padded_extent(rows, matrix.dtype.itemsize)


def _usual(call: Gemm) -> tuple[Lying, ...]:
    """How the operands lie in one piece, but for padding, at addresses that are the same modulo 16
    under all strategies."""
    found = []
    is_narrow = call.first.dtype.itemsize == 2
    matrices = (call.first, call.second, call.c)
    shared = (*(call.shared or (not m.stride for m in matrices[:2])), False)
    for matrix, (rows, columns), is_shared in zip(matrices, _shapes(call), shared, strict=True):
        size = matrix.dtype.itemsize
        padded = padded_extent(rows, size)
        leading = padded if is_narrow and _leading(matrix, rows, columns) == padded else rows
        stride = leading * columns
        alignment = PROMISED_ALIGNMENT
        if call.all_batches > 1:  # each matrix of the batch may be the first of a call
            alignment = _aligned(stride * size)
        is_one = is_shared or call.all_batches == 1
        found.append(Lying(leading, 0 if is_one else stride, alignment))
    return tuple(found)


def _is_as_aligned(call: Gemm, lies: Sequence[Lying], usual: Sequence[Lying]) -> bool:
    """Whether every row and matrix begins at least as aligned as it would in one piece."""
    matrices = (call.first, call.second, call.c)
    for matrix, own, other in zip(matrices, lies, usual, strict=True):
        size = matrix.dtype.itemsize
        distances = [(own.leading, other.leading)]
        if call.batch > 1 and own.stride:
            distances.append((own.stride, other.stride))
        if own.alignment < other.alignment or any(
            _aligned(here * size) < _aligned(there * size) for here, there in distances
        ):
            return False
    return True


def _aligned(address: int) -> int:
    """The power of two that divides an address, at most `PROMISED_ALIGNMENT`."""
    return min(PROMISED_ALIGNMENT, address & -address) or PROMISED_ALIGNMENT


def located(matrix: Matrix, addresses: Mapping[Buffer, int]) -> int:
    """The address of an operand of a call."""
    return addresses[matrix.buffer] + matrix.offset * matrix.dtype.itemsize


def check(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the library; raises `CublasError` for any status but success."""
    status = getattr(library, function)(*arguments)
    if status:
        raise CublasError(f"{function}: {status_name(status)}")


def status_name(status: int) -> str:
    """The name that the library has for a status."""
    return STATUS.get(status, f"status {status}")


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
    library.cublasLtGetProperty.argtypes = [number, pointer]
    objects: list[Any] = [pointer] * 7
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [*objects, number, pointer, pointer]
    library.cublasLtMatmulAlgoCheck.argtypes = [pointer] * 8
    library.cublasLtMatmul.argtypes = [*objects, *objects, size, pointer]
