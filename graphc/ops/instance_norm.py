"""Instance norm, which is group norm with groups of one channel."""

from __future__ import annotations

from graphc.errors import ShapeError
from graphc.ir.builder import as_value
from graphc.ir.graph import Value
from graphc.ops.norm import group_norm


def instance_norm(
    x: Value,
    epsilon: float = 1e-5,
    trainable: bool = True,
    name: str | None = None,
    scale: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Apply instance norm to float x (batch, channels, ...) (Ulyanov et al., 2016).

    It keeps the shape. Each channel of each example is normalized over all its positions. Creates
    ``scale`` (ones) and ``bias`` (zeros), both (channels,), under scope `name` or ``norm``, unless
    given as for `layer_norm`. `epsilon` is added to the variance. Instance norm is `group_norm`
    with as many groups as channels. Raises `ShapeError` for an x without positions, and
    `OptionError` unless 0 < `epsilon` < 1.
    """
    if as_value("instance_norm", x).type.rank < 3:
        raise ShapeError(
            f"instance_norm: x must be (batch, channels, positions, ...), got {x.type}"
        )
    return group_norm(x, x.shape[1], epsilon, trainable, name, scale, bias)
