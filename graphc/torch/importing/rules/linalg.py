"""Determinants and inverses of small matrices; decompositions are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.importing.determinants import determinant, inverse
from graphc.ir.graph import Value
from graphc.torch.importing.calls import Result, TorchCall, rule

ELSEWHERE = (
    "compute it outside the module and pass it as an argument, or keep that of a constant as a "
    "buffer"
)


@rule("_linalg_det", "_linalg_slogdet")
def det(call: TorchCall) -> Result:
    """Return the determinant, or its sign and the logarithm of its absolute value."""
    found = _of_small(determinant, call.value("A"))
    if call.operator == "_linalg_det":
        return found, None, None
    return graphc.sign(found), graphc.log(graphc.abs(found)), None, None


@rule("linalg_inv_ex")
def inv(call: TorchCall) -> Result:
    """Return the inverse; that of a singular matrix is not finite."""
    return _of_small(inverse, call.value("A")), None


def _of_small(function: Callable[[Value], Value], x: Value) -> Value:
    try:
        return function(x)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; {ELSEWHERE}") from None


@rule("_linalg_solve_ex", "linalg_cholesky_ex")
def decomposition(call: TorchCall) -> NoReturn:
    """Refuse a decomposition of a computed matrix; torch computes those of constants."""
    raise UnsupportedError(f"decompositions of matrices are not supported; {ELSEWHERE}")
