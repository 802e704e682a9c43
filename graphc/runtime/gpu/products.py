"""All matrix products of a program: which algorithm of cuBLASLt computes each, and the calls.

Which algorithm computes a product decides the bits of the result. So it is chosen for the product
as it would lie in one piece, whatever the plan does with its operands, and once: a record of the
choices makes the same ones again in a later run.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any

from graphc.codegen.node_calls import Buffer, Gemm, Matrix
from graphc.ir.types import padded_extent
from graphc.runtime.gpu.cublaslt import (
    PROMISED_ALIGNMENT,
    WORKSPACE_ALIGNMENT,
    Algorithm,
    CublasError,
    LtProduct,
    Lying,
    NoAlgorithm,
    aligned,
    check,
    declare,
    located,
    shapes,
    version,
)
from graphc.runtime.gpu.records import recorded

ALGORITHM = re.compile("[0-9a-f]{128}")
"""An algorithm as a record holds it: its 64 bytes."""


class Products:
    """A handle of cuBLASLt; `library` has the C functions of version 12 or later.

    `record` is what `record` gave in an earlier run; raises `CublasError` for one of another
    version.
    """

    def __init__(self, library: ctypes.CDLL, record: Mapping[str, Any] | None = None) -> None:
        self._library = library
        declare(library)
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
            Lying(_leading(matrix, *shape), matrix.stride, aligned(place))
            for matrix, shape, place in zip(
                (call.first, call.second, call.c), shapes(call), places, strict=True
            )
        )
        product = LtProduct(self._library, self._handle, call, lies, bias)
        try:
            algorithm = self._fitting(product, call, lies, aligned(bias or 0), workspace_bytes)
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
        usual = in_one_piece(call)
        if is_as_aligned(call, lies, usual) and bias_alignment == PROMISED_ALIGNMENT:
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


def _leading(matrix: Matrix, rows: int, columns: int) -> int:
    """The leading dimension; a matrix of one column has any, so one with padding."""
    return matrix.leading if columns > 1 else padded_extent(rows, matrix.dtype.itemsize)


def in_one_piece(call: Gemm) -> tuple[Lying, ...]:
    """How the operands lie in one piece, but for padding, at addresses that are the same modulo 16
    under all strategies."""
    found = []
    is_narrow = call.first.dtype.itemsize == 2
    matrices = (call.first, call.second, call.c)
    shared = (*(call.shared or (not m.stride for m in matrices[:2])), False)
    for matrix, (rows, columns), is_shared in zip(matrices, shapes(call), shared, strict=True):
        size = matrix.dtype.itemsize
        padded = padded_extent(rows, size)
        leading = padded if is_narrow and _leading(matrix, rows, columns) == padded else rows
        stride = leading * columns
        alignment = PROMISED_ALIGNMENT
        if call.all_batches > 1:  # each matrix of the batch may be the first of a call
            alignment = aligned(stride * size)
        is_one = is_shared or call.all_batches == 1
        found.append(Lying(leading, 0 if is_one else stride, alignment))
    return tuple(found)


def is_as_aligned(call: Gemm, lies: Sequence[Lying], usual: Sequence[Lying]) -> bool:
    """Whether every row and matrix begins at least as aligned as it would in one piece."""
    matrices = (call.first, call.second, call.c)
    for matrix, own, other in zip(matrices, lies, usual, strict=True):
        size = matrix.dtype.itemsize
        distances = [(own.leading, other.leading)]
        if call.batch > 1 and own.stride:
            distances.append((own.stride, other.stride))
        if own.alignment < other.alignment or any(
            aligned(here * size) < aligned(there * size) for here, there in distances
        ):
            return False
    return True
