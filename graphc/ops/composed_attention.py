"""Attention composed of other ops, which saves the weights, and its derivatives.

Let S = scale · q · kᵀ + mask, P = softmax(S), M the dropout mask times 1 / (1 - rate), W = P ∘ M
and y = W · v. The gradient of attention is

    dP = (dy · vᵀ) ∘ M    dS = P ∘ (dP - Σ dP ∘ P)
    dq = scale · dS · k   dk = scale · dSᵀ · q   dv = Wᵀ · dy

where Σ sums along a row. Fused attention computes dq, dk and dv without storing these matrices. Its
gradient with respect to a float mask is dS, and its second derivatives are those of the equations
above. Both are composed here, so they store matrices of (rows x columns), and have derivatives of
every order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from graphc.errors import ShapeError
from graphc.ir.builder import SEED, STEP, apply, constant
from graphc.ir.graph import Value
from graphc.ir.types import bool_, broadcast_shapes
from graphc.ops.choice import less_equal, where
from graphc.ops.elementwise import add, mul, scale, sub
from graphc.ops.matmul import matmul
from graphc.ops.random import Dropout, DropoutAttributes
from graphc.ops.reduce import sum
from graphc.ops.shape import reshape
from graphc.ops.softmax import causal_softmax, masked_softmax, softmax


@dataclass(frozen=True)
class ComposedAttention:
    """Attention of q, k and v as separate ops.

    `shared` is the number of consecutive heads of q that share a head of k and v. `from_first`
    aligns the first row of causal attention with the first column, else the last with the last.
    """

    q: Value
    k: Value
    v: Value
    masks: Sequence[Value]
    factor: float
    causal: bool
    from_first: bool
    shared: int = 1
    dropout: DropoutAttributes | None = None
    counters: tuple[Value, ...] = (SEED, STEP)
    """The seed and the step that dropout reads."""

    @cached_property
    def weights(self) -> Value:
        """P, (..., rows, columns)."""
        scores = scale(matmul(self._folded(self.q), self.k, transpose_b=True), self.factor)
        return _softmax(self._unfolded(scores), self.causal, self.from_first, self.masks)

    @cached_property
    def y(self) -> Value:
        return self._over_rows(self.dropped(self.weights), self.v)

    def dropped(self, x: Value) -> Value:
        """Return x ∘ M."""
        if self.dropout is None:
            return x
        return apply(Dropout, x, *self.counters, attributes=self.dropout).output

    def slopes(self, dy: Value) -> Value:
        """Return dS, which is also the gradient of a float mask before a sum to its shape."""
        return self._through_softmax(self.dropped(self._over_columns(dy, self.v)))

    def second_gradients(
        self, dy: Value, ddq: Value | None, ddk: Value | None, ddv: Value | None
    ) -> Mapping[str, Value | None]:
        """Return the gradients of dy, q, k, v and the scores, from those of dq, dk and dv.

        Each name X̄ of the derivation is the gradient of X. By the equations of this module,

            S̄' = scale · (q̄' · kᵀ + q · k̄'ᵀ), where q̄', k̄' and v̄' are the gradients of dq, dk, dv
            dP̄ = P ∘ (S̄' - Σ S̄' ∘ P)
            P̄ = S̄' ∘ (dP - Σ dP ∘ P) - (Σ S̄' ∘ P) ∘ dP + (dy · v̄'ᵀ) ∘ M

        and q̄, k̄, v̄, dȳ and S̄ follow by the rules for products and softmax. S̄ is also the gradient
        of a float mask before a sum to its shape.
        """
        p, s = self.weights, self.factor
        products = self.dropped(self._over_columns(dy, self.v))
        of_slopes = _total(
            None if ddq is None else self._over_columns(ddq, self.k),
            None if ddk is None else self._over_columns(self.q, ddk),
        )
        of_p = None if ddv is None else self.dropped(self._over_columns(dy, ddv))
        of_dy = None if ddv is None else self._over_rows(self.dropped(p), ddv)
        of_q = of_k = of_v = None
        if of_slopes is not None:
            of_slopes = scale(of_slopes, s)
            means = sum(mul(of_slopes, p), -1, keepdims=True)
            own = sum(mul(products, p), -1, keepdims=True)
            through = sub(mul(of_slopes, sub(products, own)), mul(means, products))
            of_p = _total(through, of_p)
            of_products = self.dropped(mul(p, sub(of_slopes, means)))
            of_dy = _total(of_dy, self._over_rows(of_products, self.v))
            of_v = self._over_both(of_products, dy)
            slopes = self._through_softmax(products)
            of_q = None if ddk is None else scale(self._over_rows(slopes, ddk), s)
            of_k = None if ddq is None else scale(self._over_both(slopes, ddq), s)
        if of_p is None:
            return {}
        of_scores = self._through_softmax(of_p)
        of_q = _total(of_q, scale(self._over_rows(of_scores, self.k), s))
        of_k = _total(of_k, scale(self._over_both(of_scores, self.q), s))
        return {"dy": of_dy, "q": of_q, "k": of_k, "v": of_v, "scores": of_scores}

    def _through_softmax(self, dp: Value) -> Value:
        """Return P ∘ (dP - Σ dP ∘ P)."""
        p = self.weights
        return mul(p, sub(dp, sum(mul(dp, p), -1, keepdims=True)))

    def _over_columns(self, x: Value, y: Value) -> Value:
        """Return x · yᵀ (..., rows, columns) of x with the heads of q and y with those of k."""
        return self._unfolded(matmul(self._folded(x), y, transpose_b=True))

    def _over_rows(self, x: Value, y: Value) -> Value:
        """Return x · y (..., rows, width), where x is (..., rows, columns)."""
        return self._unfolded(matmul(self._folded(x), y))

    def _over_both(self, x: Value, y: Value) -> Value:
        """Return xᵀ · y (..., columns, width), summed over the heads that share a head of k."""
        return matmul(self._folded(x), self._folded(y), transpose_a=True)

    def _folded(self, x: Value) -> Value:
        """Merge the rows of each `shared` consecutive heads into rows of one head."""
        if self.shared == 1:
            return x
        *outer, heads, rows, width = x.shape
        return reshape(x, (*outer, heads // self.shared, self.shared * rows, width))

    def _unfolded(self, x: Value) -> Value:
        """Split the rows of each head into those of `shared` heads."""
        if self.shared == 1:
            return x
        *outer, heads, rows, width = x.shape
        return reshape(x, (*outer, heads * self.shared, rows // self.shared, width))


def _total(first: Value | None, second: Value | None) -> Value | None:
    """Return the sum of gradients, of which None is zero."""
    if first is None or second is None:
        return second if first is None else first
    return add(first, second)


def _softmax(scores: Value, causal: bool, from_first: bool, masks: Sequence[Value]) -> Value:
    """Return the softmax of scores (..., rows, columns) over the columns that each row attends
    to."""
    rows, columns = scores.shape[-2:]
    if not masks and not causal:
        return softmax(scores)
    if not masks and (not from_first or rows == columns):
        return causal_softmax(scores)
    seen = None
    for mask in masks:
        if broadcast_shapes("attention: mask", mask.shape, scores.shape) != scores.shape:
            raise ShapeError(f"attention: mask {mask.type} does not broadcast to {scores.type}")
        seen = mask
        if mask.type.dtype != bool_:
            # Exclude -inf from the scores: softmax of a row with only -inf would be NaN.
            lowest = -float(ml_dtypes.finfo(mask.type.dtype.numpy).max)  # type: ignore[no-untyped-call]
            seen = less_equal(lowest, mask)
            scores = add(scores, where(seen, mask, 0.0))
    if causal:
        earlier = _earlier(rows, columns, 0 if from_first else columns - rows)
        seen = earlier if seen is None else where(earlier, seen, False)
    assert seen is not None
    return masked_softmax(scores, seen)


def _earlier(rows: int, columns: int, shift: int) -> Value:
    """Return the causal mask (rows, columns): true in each row at the columns up to row + shift."""
    row = constant(np.arange(rows, dtype=np.int32)[:, np.newaxis] + shift)
    return less_equal(constant(np.arange(columns, dtype=np.int32)), row)
