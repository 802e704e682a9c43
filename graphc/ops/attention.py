"""Scaled dot-product attention (Vaswani et al., 2017), composed of other ops or computed by one op.

The composed form saves the attention weights for the gradient, (rows x columns) per head. The fused
form saves one number per row and recomputes the weights (Dao et al., 2022). In grouped-query
attention, consecutive heads of queries share one head of keys and values (Ainslie et al., 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from graphc.errors import DTypeError, OptionError, ShapeError, choose, truth, whole_number
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Value
from graphc.ir.types import bool_, broadcast_shapes, compute_dtype
from graphc.ops.composed_attention import ComposedAttention
from graphc.ops.concat import split
from graphc.ops.dropped_attention import dropped_attention
from graphc.ops.elementwise import add
from graphc.ops.fused_attention import Attention
from graphc.ops.random import DropoutAttributes, dropout_rate, next_stream
from graphc.ops.shape import broadcast_to, reshape, transpose
from graphc.ops.tiled_attention import AttentionAttributes

ATTENTION_FORMS = ("composed", "fused")

Causal = bool | Literal["first", "last"]
"""The causal mask: False for none, "first" or "last" for the aligned row and column; True is
"last"."""


def attention(
    q: Value,
    k: Value,
    v: Value,
    causal: Causal = False,
    drop: float = 0.0,
    scale: float | None = None,
    form: str = "fused",
    *,
    mask: Value | None = None,
) -> Value:
    """Compute softmax(scale · q · kᵀ) · v.

    q is (..., rows, d), k (..., columns, d) and v (..., columns, e); the result is (..., rows, e).
    Leading axes, such as batch and heads, broadcast. Heads are the axis before the rows. k and v
    may have fewer heads than q, by a whole factor: as many consecutive heads of q then share one
    head of k and v. `scale` is 1 / √d by default (Vaswani et al., 2017).

    - With `causal`, a row attends to no column that belongs to a later row, and no mask is stored.
      True or "last" aligns the last row with the last column, so that k and v may begin with cached
      past positions. It needs at least as many columns as rows. "first" aligns the first row with
      the first column. With equally many rows and columns, both alignments are the same.
    - `mask` broadcasts to (..., rows, columns). A bool mask is true where a row attends to a
      column. A float mask is added to the scores, and -inf hides a column. A row that attends to
      nothing is 0 and has no gradient. A row in which a finite number such as -3e38 hides every
      column is a mean, and the fused form has no exact gradient for it.
    - `drop` is the dropout rate of the weights in training; both forms drop the same elements.
    - With the `form` "fused", the result and the gradients of q, k and v store no weights, so
      memory grows linearly with the number of positions (Dao et al., 2022). Gradients of masks and
      derivatives of higher order store matrices (rows x columns). The form "composed" stores the
      weights for the gradient.

    Raises `ShapeError` if the operands do not fit, `DTypeError` for a mask of another dtype, and
    `OptionError` for another form or an invalid rate.
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        if as_value(f"attention: {name}", value).type.rank < 2:
            raise ShapeError(
                f"attention: {name} must be (..., positions, channels), got {value.type}"
            )
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else _factor(scale)
    from_first = _is_from_first(causal)
    given = () if mask is None else (as_value("attention: mask", mask),)
    _check_widths(q, k, v)
    shared = _heads_that_share(q, k, v)
    if shared == 1:
        _leading_axes(q, k, v)
    if causal and not from_first and q.shape[-2] > k.shape[-2]:
        raise ShapeError(
            "attention: causal attention needs at least as many columns as rows, got "
            f'{q.type} and {k.type}; use causal="first" for more rows'
        )
    fused = choose("attention: form", form, ATTENTION_FORMS) == "fused"
    wide = compute_dtype(q.type.dtype) if fused else q.type.dtype
    for each in given:
        if each.type.dtype not in (bool_, q.type.dtype, wide):
            raise DTypeError(
                f"attention: a mask must be bool or {q.type.dtype}, the dtype of q, got "
                f"{each.type}; convert it with graphc.cast"
            )
    rate = dropout_rate("attention", drop)
    if fused:
        if shared == 1:
            q, k, v = _with_equal_axes(q, k, v)
        return _fused(q, k, v, given, AttentionAttributes(factor, bool(causal), from_first), rate)
    drawn = DropoutAttributes(rate, next_stream()) if rate else None
    return ComposedAttention(q, k, v, given, factor, bool(causal), from_first, shared, drawn).y


def _factor(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise OptionError(f"attention: scale must be a finite number, got {given!r}")
    return float(given)


def _is_from_first(causal: Causal) -> bool:
    if isinstance(causal, str):
        choose("attention: causal", causal, ("first", "last"))
    else:
        truth("attention: causal", causal, ', or "first" or "last"')
    return causal == "first"


def _check_widths(q: Value, k: Value, v: Value) -> None:
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            "attention: q must be (..., rows, width), k (..., columns, width) and v (..., columns, "
            f"value width), got {q.type}, {k.type} and {v.type}"
        )


def _heads_that_share(q: Value, k: Value, v: Value) -> int:
    """Return the number of heads of q per head of k and v.

    It is 1 if k and v have one head, or as many as q.
    """
    if min(q.type.rank, k.type.rank, v.type.rank) < 3 or k.shape[-3] in (1, q.shape[-3]):
        return 1
    same = q.shape[:-3] == k.shape[:-3] == v.shape[:-3] and k.shape[-3] == v.shape[-3]
    if not same or q.shape[-3] % k.shape[-3]:
        raise ShapeError(
            "attention: q, k and v must have equal leading axes, k and v equal heads, and the "
            f"heads of q a multiple of those; got {q.type}, {k.type} and {v.type}"
        )
    return q.shape[-3] // k.shape[-3]


def _fused(
    q: Value, k: Value, v: Value, masks: tuple[Value, ...], attributes: AttentionAttributes,
    rate: float,
) -> Value:  # fmt: skip
    """Compute fused attention; leading axes are added or merged to (batch, heads, rows, width)."""
    leading = q.shape[:-2]
    outer = math.prod(leading[:-1])
    scores = (*leading, q.shape[-2], k.shape[-2])
    given = [_mask_of_four(mask, scores) for mask in masks]
    q, k, v = (reshape(x, (outer, x.shape[-3] if leading else 1, *x.shape[-2:])) for x in (q, k, v))
    if rate == 0:
        y = apply(Attention, q, k, v, *given, attributes=attributes).outputs[0]
    else:
        y = dropped_attention(q, k, v, given, attributes, rate)
    return reshape(y, (*leading, *y.shape[-2:]))


def _leading_axes(q: Value, k: Value, v: Value) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the leading axes to which those of k and v broadcast, and those of all three."""
    own = broadcast_shapes("attention: leading axes of k and v", k.shape[:-2], v.shape[:-2])
    return own, broadcast_shapes("attention: leading axes of q and k", q.shape[:-2], own)


def _with_equal_axes(q: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
    """Broadcast leading axes, except that one head of k and v remains one."""
    own, leading = _leading_axes(q, k, v)
    heads = (own[-1] if own else 1,) if leading else ()
    of_keys = (*leading[:-1], *heads)
    return (
        broadcast_to(q, (*leading, *q.shape[-2:])),
        broadcast_to(k, (*of_keys, *k.shape[-2:])),
        broadcast_to(v, (*of_keys, *v.shape[-2:])),
    )


def _mask_of_four(mask: Value, scores: tuple[int, ...]) -> Value:
    """Reshape a mask to four axes: batch, heads, queries, keys. It must broadcast to `scores`."""
    if broadcast_shapes("attention: mask", mask.shape, scores) != scores:
        raise ShapeError(f"attention: mask {mask.type} does not broadcast to {list(scores)}")
    shape = (*(1,) * (len(scores) - mask.type.rank), *mask.shape)
    *outer, heads, rows, columns = (1, 1, *shape)
    if any(n > 1 for n in outer):
        outer = [*scores[:-3]]
        mask = broadcast_to(reshape(mask, shape), (*outer, heads, rows, columns))
    return reshape(mask, (math.prod(outer), heads, rows, columns))


def multi_head_attention(
    qkv: Value,
    heads: int,
    causal: Causal = False,
    drop: float = 0.0,
    form: str = "fused",
    *,
    keys: Value | None = None,
    values: Value | None = None,
    key_heads: int | None = None,
    mask: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Compute self-attention of `heads` heads from queries, keys and values in one tensor `qkv`.

    `qkv` is (batch, positions, 3 · width), and the result is (batch, positions, width). The last
    axis of `qkv` has all queries, then all keys, then all values, each ordered by head. `causal`,
    `drop`, `form` and `mask` are those of `attention`, whose scores are (batch, heads, positions,
    key positions). A padding mask is (batch, 1, 1, key positions).

    - `key_heads`, a divisor of `heads`, is a smaller number of heads of keys and values.
      Consecutive heads of queries share each of them. qkv is then (batch, positions, width + 2 ·
      key width), where every head has the same width.
    - With `keys` and `values`, both (batch, key positions, width of the key heads), `qkv` has only
      the queries, (batch, positions, width). To use cached keys and values, prepend them to the new
      ones by `graphc.concat` along axis 1; `causal` then aligns the last row and the last column.
    - `bias`, one number for each element of queries, keys and values together, is added to them.

    Raises `ShapeError` if the heads do not divide the widths or operands do not fit, and
    `OptionError` for keys without values.
    """
    heads = whole_number("multi_head_attention: heads", heads)
    own = heads if key_heads is None else whole_number("multi_head_attention: key_heads", key_heads)
    if heads % own:
        raise ShapeError(
            f"multi_head_attention: key_heads must divide heads, got key_heads={own} and "
            f"heads={heads}"
        )
    if (keys is None) != (values is None):
        missing = "keys" if keys is None else "values"
        raise OptionError(
            f"multi_head_attention: keys and values must be given together; {missing} is missing"
        )
    if keys is None or values is None:
        parts = _packed(qkv, heads, own, bias)
    else:
        parts = _separate((qkv, keys, values), (heads, own, own), bias)
    q, k, v = (
        transpose(reshape(part, (*part.shape[:2], count, part.shape[2] // count)), (0, 2, 1, 3))
        for part, count in zip(parts, (heads, own, own), strict=True)
    )
    mixed = attention(q, k, v, causal, drop, form=form, mask=mask)
    batch, positions = q.shape[0], q.shape[2]
    return reshape(transpose(mixed, (0, 2, 1, 3)), (batch, positions, heads * v.shape[3]))


def _packed(qkv: Value, heads: int, key_heads: int, bias: Value | None) -> Sequence[Value]:
    """Split the tensor `qkv` into queries, keys and values, after adding the bias."""
    total = heads + 2 * key_heads
    if as_value("multi_head_attention", qkv).type.rank != 3 or qkv.shape[2] % total:
        extent = "3 · width" if heads == key_heads else "width + 2 · key width"
        raise ShapeError(
            f"multi_head_attention: qkv must be (batch, positions, {extent}), where width is a "
            f"multiple of {heads} heads, got {qkv.type}"
        )
    if bias is not None:
        _check_bias(bias, qkv.shape[2])
        qkv = add(qkv, bias)
    width = qkv.shape[2] // total
    if heads == key_heads:
        return split(qkv, 3, axis=2)
    return split(qkv, (heads * width, key_heads * width, key_heads * width), axis=2)


def _separate(
    given: tuple[Value, Value, Value], heads: tuple[int, ...], bias: Value | None
) -> Sequence[Value]:
    """Check separate queries, keys and values, and add the bias."""
    for name, part, count in zip(("queries", "keys", "values"), given, heads, strict=True):
        if as_value("multi_head_attention", part).type.rank != 3 or part.shape[2] % count:
            raise ShapeError(
                f"multi_head_attention: {name} must be (batch, positions, width), where width is "
                f"a multiple of {count} heads, got {part.type}"
            )
    if bias is None:
        return given
    widths = [part.shape[2] for part in given]
    _check_bias(bias, sum(widths))
    return [add(part, own) for part, own in zip(given, split(bias, widths), strict=True)]


def _check_bias(bias: Value, width: int) -> None:
    if as_value("multi_head_attention", bias).shape != (width,):
        raise ShapeError(
            f"multi_head_attention: bias must have the shape ({width},), one number per element "
            f"of queries, keys and values, got {bias.type}"
        )
