"""Matrix products of a program: the choice of cuBLASLt algorithms, and the calls.

The algorithm of a product determines the bits of the result. It is therefore chosen once, for the
product with contiguous operands, whatever layout the plan gives them. A record of the choices
reproduces them in a later run.
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
    MatrixPlacement,
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
"""The text of an algorithm in a record: its 64 bytes in hexadecimal."""


class Products:
    """A handle of cuBLASLt; `library` has the C functions of version 12 or later.

    The argument `record` is the property `record` of an earlier run. Raises `CublasError` for a
    record of another version.
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
                    f"the record of algorithms has {kept!r} for {key!r}, which is not an "
                    "algorithm; delete the record"
                )
        self._given = frozenset(self._algorithms)
        self._handle = ctypes.c_void_p()
        check(library, "cublasLtCreate", ctypes.byref(self._handle))

    @property
    def record(self) -> dict[str, Any]:
        """The algorithm of each product so far, as JSON; None if a product had none."""
        return {"cublaslt": self._version, "algorithms": dict(self._algorithms)}

    def bind(
        self, call: Gemm, addresses: Mapping[Buffer, int], workspace: int, workspace_bytes: int
    ) -> LtProduct:
        """Bind a product to buffers at these device addresses, with a workspace of its own.

        The algorithm is the library's first choice within the workspace, for the product with
        contiguous operands. If the actual operands are less aligned, or that algorithm does not
        support them, the choice is made for the actual layout. Raises `NoAlgorithm` if there is
        none, and `CublasError` for a recorded algorithm that this GPU does not have.
        """
        if workspace % WORKSPACE_ALIGNMENT:
            raise CublasError(f"a workspace must be aligned to 256 bytes, got {workspace:#x}")
        places = [located(matrix, addresses) for matrix in (call.first, call.second, call.c)]
        bias = None if call.bias is None else addresses[call.bias]
        placements = tuple(
            MatrixPlacement(_leading(matrix, *shape), matrix.stride, aligned(place))
            for matrix, shape, place in zip(
                (call.first, call.second, call.c), shapes(call), places, strict=True
            )
        )
        factors = [addresses[factor] for factor in call.factors or ()]
        product = LtProduct(self._library, self._handle, call, placements, bias, factors=factors)
        try:
            algorithm = self._fitting(
                product, call, placements, aligned(bias or 0), workspace_bytes
            )
            product.complete(algorithm, places, workspace, workspace_bytes)
        except BaseException:
            product.close()
            raise
        return product

    def _fitting(
        self,
        product: LtProduct,
        call: Gemm,
        placements: Sequence[MatrixPlacement],
        bias_alignment: int,
        workspace_bytes: int,
    ) -> Algorithm:
        """Return the algorithm for contiguous operands if it fits, else one for this layout."""
        asked = [(placements, bias_alignment)]
        usual = in_one_piece(call)
        if is_as_aligned(call, placements, usual) and bias_alignment == PROMISED_ALIGNMENT:
            asked.insert(0, (usual, PROMISED_ALIGNMENT))
        for each in asked:
            key = signature(call, *each, workspace_bytes)
            algorithm = self._algorithm(key, call, *each, workspace_bytes)
            if algorithm is not None and product.takes(algorithm, workspace_bytes):
                return algorithm
            if algorithm is not None and key in self._given:
                raise CublasError(
                    f"the recorded algorithm for {shown(call)} is not available; the record may "
                    "come from another GPU; delete the record"
                )
        raise NoAlgorithm(
            f"cuBLASLt has no algorithm for {shown(call)} within a workspace of "
            f"{workspace_bytes} bytes"
        )

    def _algorithm(
        self,
        key: str,
        call: Gemm,
        placements: Sequence[MatrixPlacement],
        bias_alignment: int,
        workspace_bytes: int,
    ) -> Algorithm | None:
        """Return the recorded choice for a product with this layout.

        If there is none, the first choice of the library is recorded under the signature `key`.
        """
        if key not in self._algorithms:
            found = self._choose(call, placements, bias_alignment, workspace_bytes)
            self._algorithms[key] = None if found is None else bytes(found).hex()
        kept = self._algorithms[key]
        return None if kept is None else Algorithm.from_buffer_copy(bytes.fromhex(kept))

    def _choose(
        self,
        call: Gemm,
        placements: Sequence[MatrixPlacement],
        bias_alignment: int,
        workspace_bytes: int,
    ) -> Algorithm | None:
        """Return the library's first choice for all products of a node at once.

        For the choice, the library uses the addresses of the bias and of factors only for their
        alignment. So numbers with that alignment are passed instead of the addresses.
        """
        bias = None if call.bias is None else bias_alignment
        factors = [PROMISED_ALIGNMENT for _ in call.factors or ()]
        with LtProduct(
            self._library, self._handle, call, placements, bias, call.all_batches, factors
        ) as asked:
            return asked.first_choice([each.alignment for each in placements], workspace_bytes)

    def close(self) -> None:
        """Destroy the handle of cuBLASLt."""
        if self._handle:
            check(self._library, "cublasLtDestroy", self._handle)
            self._handle = ctypes.c_void_p()


def signature(
    call: Gemm, placements: Sequence[MatrixPlacement], bias_alignment: int, workspace_bytes: int
) -> str:
    """Return a unique text for a product, its layout and the size of its workspace."""
    matrices = (call.first, call.second, call.c)
    operands = " ".join(
        f"{matrix.dtype}:{each.leading}:{each.stride}:{each.alignment}"
        for matrix, each in zip(matrices, placements, strict=True)
    )
    letters = "".join("NT"[flag] for flag in (call.transpose_first, call.transpose_second))
    return (
        f"{letters} {call.m}x{call.n}x{call.k} batch={call.all_batches} {operands} "
        f"compute={call.compute} {call.epilogue}"
        + (f":{bias_alignment}" if call.bias is not None else "")
        + f" room={workspace_bytes}"
    )


def shown(call: Gemm) -> str:
    """Describe a product for messages."""
    return (
        f"a {call.first.dtype} product (m {call.m}, n {call.n}, k {call.k}, epilogue "
        f"{call.epilogue})"
    )


def _leading(matrix: Matrix, rows: int, columns: int) -> int:
    """Return the leading dimension of a matrix in elements.

    For a single column any number is valid, so the result is the padded extent.
    """
    return matrix.leading if columns > 1 else padded_extent(rows, matrix.dtype.itemsize)


def in_one_piece(call: Gemm) -> tuple[MatrixPlacement, ...]:
    """Return the layouts that a call's operands have if they are contiguous, apart from padding.

    The alignments are those that hold under all strategies.
    """
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
        found.append(MatrixPlacement(leading, 0 if is_one else stride, alignment))
    return tuple(found)


def is_as_aligned(
    call: Gemm, placements: Sequence[MatrixPlacement], usual: Sequence[MatrixPlacement]
) -> bool:
    """Return True if all rows and matrices are at least as aligned as those in `usual`."""
    matrices = (call.first, call.second, call.c)
    for matrix, own, other in zip(matrices, placements, usual, strict=True):
        size = matrix.dtype.itemsize
        distances = [(own.leading, other.leading)]
        if call.batch > 1 and own.stride:
            distances.append((own.stride, other.stride))
        if own.alignment < other.alignment or any(
            aligned(here * size) < aligned(there * size) for here, there in distances
        ):
            return False
    return True
