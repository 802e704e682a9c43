"""Export of masked softmax and attention."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes

from graphc.ir.graph import Node
from graphc.ir.types import DType, bool_
from graphc.onnx.emission import Emission, exports
from graphc.onnx.exports.norms import dropped
from graphc.onnx.exports.products import turned


@exports("causal_softmax")
def _causal_softmax(node: Node, on: Emission, x: str) -> str:
    rows, columns = node.output.shape[-2:]
    hidden = _later_hidden(on, x, rows, columns, columns - rows, node.output.type.dtype)
    return on("Softmax", hidden, axis=-1)


@exports("masked_softmax")
def _masked_softmax(node: Node, on: Emission, x: str, mask: str) -> str:
    return _masked(on, x, mask, node.attributes.axis, node.output.type.dtype)


@exports("attention")
def _attention(node: Node, on: Emission, q: str, k: str, v: str, *mask: str) -> list[str | None]:
    return _attended(node, on, (q, k, v), mask, lambda weights: weights)


@exports("dropped_attention")
def _dropped_attention(
    node: Node, on: Emission, q: str, k: str, v: str, seed: str, step: str, *mask: str
) -> list[str | None]:
    a = node.attributes
    return _attended(
        node, on, (q, k, v), mask, lambda weights: dropped(on, weights, a.rate, a.stream)
    )


def _attended(
    node: Node,
    on: Emission,
    operands: tuple[str, str, str],
    mask: tuple[str, ...],
    drop: Callable[[str], str],
) -> list[str | None]:
    a, (q, k, v), (left, right, values) = node.attributes, operands, node.inputs[:3]
    masks = node.inputs[-1:] if mask else ()
    (batch, heads, rows, width), columns, dtype = left.shape, right.shape[2], left.type.dtype
    shared = heads // right.shape[1]
    if shared > 1:  # heads of q that share a head of k get a separate axis
        q = on("Reshape", q, on.integers(batch, right.shape[1], shared, rows, width))
        k, v = (on("Unsqueeze", each, on.integers(2)) for each in (k, v))
    scores = on("MatMul", q, turned(on, k, 5 if shared > 1 else 4))
    scores = on("Mul", scores, on.number(a.scale, dtype))
    if shared > 1:
        scores = on("Reshape", scores, on.integers(batch, heads, rows, columns))
    if a.causal:
        past = 0 if a.from_first else columns - rows
        scores = _later_hidden(on, scores, rows, columns, past, dtype)
    weights = drop(_weights(on, scores, mask, masks[0].type.dtype if masks else bool_, dtype))
    if shared > 1:
        weights = on("Reshape", weights, on.integers(batch, -1, shared, rows, columns))
    y = on("MatMul", weights, v)
    if shared > 1:
        y = on("Reshape", y, on.integers(batch, heads, rows, values.shape[3]))
    return [y, None]


def _weights(on: Emission, scores: str, mask: tuple[str, ...], kind: DType, dtype: DType) -> str:
    """Emit the softmax of scores with an optional mask.

    The mask has bools, or numbers to add to the scores.
    """
    if not mask:
        return on("Softmax", scores, axis=-1)
    (shown,) = mask
    if kind != bool_:
        added, shown = shown, on("Not", on("IsInf", shown, detect_positive=0))
        added = on("Where", shown, added, on.number(0, kind))
        scores = on("Add", scores, on.cast(added, kind, dtype))
    return _masked(on, scores, shown, 3, dtype)


def _masked(on: Emission, x: str, mask: str, axis: int, dtype: DType) -> str:
    """Emit a softmax over the elements that the mask admits.

    In rows without such elements the result is 0, not NaN.
    """
    least = float(ml_dtypes.finfo(dtype.numpy).min) / 2  # type: ignore[no-untyped-call]
    weights = on("Softmax", on("Where", mask, x, on.number(least, dtype)), axis=axis)
    return on("Where", mask, weights, on.number(0, dtype))


def _later_hidden(
    on: Emission, scores: str, rows: int, columns: int, past: int, dtype: DType
) -> str:
    """Mask scores (..., rows, columns) of later positions by -inf, for causal attention.

    The first row attends to `past` columns besides its own column.
    """

    def mask() -> str:
        hidden = on.filled((rows, columns), float("-inf"), dtype)
        return on("Trilu", hidden, on.scalar_integer(past + 1), upper=1)

    return on("Add", scores, on.once(("causal", rows, columns, past, dtype), mask))
