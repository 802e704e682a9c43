"""Functions whose decompositions in torch have wrong gradients where a branch is singular.

A selection between branches multiplies the gradient of the other one by 0, which is NaN if that
gradient is infinite. Here each branch gets operands at which it is regular.
"""

from __future__ import annotations

import math
from typing import NoReturn

import graphc
from graphc.importing.calls import UnsupportedError
from graphc.ir.graph import Value
from graphc.torch.importing.calls import TorchCall, rule
from graphc.torch.importing.rules.elementwise import UNARY

SMALL = 0.01
"""Below this angle sin(s) / s is a polynomial, exact to rounding in float64."""


@rule("sinc")
def sinc(call: TorchCall) -> Value:
    """Return sin(s) / s of s = π x, as a polynomial near 0."""
    s = graphc.mul(graphc.cast(call.value("self"), call.dtype), math.pi)
    is_small = graphc.less(graphc.abs(s), SMALL)
    near, far = graphc.where(is_small, s, 0.0), graphc.where(is_small, 1.0, s)
    square = graphc.mul(near, near)
    polynomial = 1.0 - square / 6.0 * (1.0 - square / 20.0)
    return graphc.where(is_small, polynomial, graphc.div(graphc.sin(far), far))


@rule("logit")
def logit(call: TorchCall) -> Value:
    """Return log(x) - log(1 - x), whose gradient is infinite at 0 and 1; `eps` clips x."""
    x = graphc.cast(call.value("self"), call.dtype)
    eps = call.get("eps")
    if eps is not None:
        x = graphc.clip(x, eps, 1.0 - eps)
    return graphc.sub(graphc.log(x), graphc.log(graphc.sub(1.0, x)))


@rule("xlogy", "special_xlog1py")
def x_log_y(call: TorchCall) -> Value:
    """Return x log(y) or x log(1 + y), and 0 for x = 0 unless y is NaN."""
    x, y = (graphc.cast(call.as_value(call[name]), call.dtype) for name in ("self", "other"))
    return _x_log(x, y, "log" if call.operator == "xlogy" else "log1p")


@rule("special_entr")
def entropy(call: TorchCall) -> Value:
    """Return -x log(x), and 0 with the gradient 0 at x = 0; negative x give -inf."""
    x = graphc.cast(call.value("self"), call.dtype)
    is_negative = graphc.less(x, 0.0)
    inside = graphc.where(is_negative, 1.0, x)
    found = graphc.neg(_x_log(inside, inside, "log"))
    return graphc.where(is_negative, graphc.full((), -math.inf, call.dtype), found)


def _x_log(x: Value, y: Value, function: str) -> Value:
    pole = 0.0 if function == "log" else -1.0
    infinite = graphc.bitwise_or(graphc.less_equal(y, pole), graphc.isinf(y))
    is_zero = graphc.bitwise_and(graphc.equal(x, 0.0), infinite)
    return graphc.mul(x, UNARY[function](graphc.where(is_zero, 1.0, y)))


@rule("multilabel_margin_loss", "multilabel_margin_loss_forward")
def multilabel_margin(call: TorchCall) -> NoReturn:
    """Refuse a loss whose decomposition in torch gives other values than the operator."""
    raise UnsupportedError(
        "torch's decomposition counts targets behind the first -1; use multilabel_soft_margin_loss"
    )
