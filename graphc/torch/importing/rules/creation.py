"""Tensors filled with one number in the shape of an operand; without operands they are known."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule

FILLED = {
    "empty": 0,
    "empty_like": 0,
    "empty_permuted": 0,
    "empty_strided": 0,
    "full": None,
    "full_like": None,
    "new_empty": 0,
    "new_empty_strided": 0,
    "new_full": None,
    "new_ones": 1,
    "new_zeros": 0,
    "ones": 1,
    "ones_like": 1,
    "zero": 0,
    "zeros": 0,
    "zeros_like": 0,
}
"""Maps operators to their fill value, or None for `fill_value`; empty tensors are filled with 0."""


@rule(*FILLED)
def filled(call: TorchCall) -> Value:
    """Return a tensor of torch's shape filled with one number."""
    number = FILLED[call.operator]
    found = call["fill_value"] if number is None else number
    return graphc.full(call.shape, float(found), call.dtype)


@rule("fill")
def fill(call: TorchCall) -> Value:
    """Return a tensor filled with a number or with a tensor of one element."""
    given = call["value"]
    if isinstance(given, int | float):
        return graphc.full(call.shape, float(given), call.dtype)
    return graphc.broadcast_to(graphc.cast(call.as_value(given), call.dtype), call.shape)


@rule("copy")
def copy(call: TorchCall) -> Value:
    """Return the source, in the shape and dtype of the operand that it overwrites."""
    return graphc.broadcast_to(graphc.cast(call.value("src"), call.dtype), call.shape)
