"""Decompositions of matrices, which graphc does not have."""

from __future__ import annotations

from typing import NoReturn

from graphc.importing.calls import UnsupportedError
from graphc.torch.importing.calls import TorchCall, rule


@rule("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_cholesky_ex", "linalg_inv_ex")
def decomposition(call: TorchCall) -> NoReturn:
    """Refuse a decomposition of a computed matrix; torch computes those of constants."""
    raise UnsupportedError(
        "matrix decompositions, inverses and determinants are not supported; compute them outside "
        "the module and pass them as arguments, or keep those of constants as buffers"
    )
