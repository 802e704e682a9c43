"""Residual networks: He, Zhang, Ren and Sun (2015, 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import OptionError
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.ir.ops.activation import relu
from graphc.ir.ops.conv import conv2d
from graphc.ir.ops.elementwise import add
from graphc.ir.ops.loss import softmax_cross_entropy
from graphc.ir.ops.matmul import linear
from graphc.ir.ops.norm import batch_norm
from graphc.ir.ops.pool import average_pool2d, global_average_pool2d, max_pool2d
from graphc.ir.ops.shape import reshape

UNITS = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    500: (8, 60, 90, 8),
    1001: (15, 121, 182, 15),
}
"""Units of the four stages by nominal depth; the depth is 3 · units + 2, or near it."""


def _conv_norm_relu(x: Value, filters: int, window: int, stride: int, padding: int) -> Value:
    return relu(batch_norm(conv2d(x, filters, window, stride, padding)))


def _bottleneck(x: Value, filters: int, stride: int, project: bool) -> Value:
    h = x
    for name, width, window, step, padding in (
        ("reduce", filters, 1, 1, 0),
        ("window", filters, 3, stride, 1),
        ("expand", 4 * filters, 1, 1, 0),
    ):
        with scope(name):
            h = _conv_norm_relu(h, width, window, step, padding)
    if project:
        with scope("shortcut"):
            x = _conv_norm_relu(x, 4 * filters, 1, stride, 0)
    return add(h, x)


def resnet(
    depth: int = 50,
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    units: Sequence[int] = (),
) -> Value:
    """The bottleneck network that the sublinear-memory paper's system was measured on.

    Convolutions have biases; every one is followed by batch norm and relu, the expanding one and
    the projection too, and nothing follows the sum. `units` gives the four stages' units and
    overrides `depth`. Inputs: ``x`` (batch, 3, image, image) and ``labels`` (batch,), int32.
    """
    stages = tuple(units) or UNITS.get(depth, ())
    if len(stages) != 4 or any(not isinstance(n, int) or n < 1 for n in stages):
        raise OptionError(
            f"resnet: depth is one of {', '.join(map(str, UNITS))}, or units=(a,b,c,d) gives the "
            f"units of four stages; got depth={depth!r}, units={units!r}"
        )
    h: Value = input("x", (batch, 3, image, image))
    with scope("stem"):
        h = max_pool2d(_conv_norm_relu(h, 64, 7, 2, 3), 3, 2)
    for stage, count in enumerate(stages):
        for unit in range(count):
            with scope(f"stage{stage + 1}/unit{unit}"):
                stride = 2 if stage > 0 and unit == 0 else 1
                h = _bottleneck(h, 64 * 2**stage, stride, project=unit == 0)
    h = average_pool2d(h, h.shape[2:])  # type: ignore[arg-type]
    with scope("output"):
        logits = linear(reshape(h, (batch, -1)), classes)
    return softmax_cross_entropy(logits, input("labels", (batch,), dtype="int32"))


def preact_resnet(depth: int = 29, batch: int = 32, image: int = 32, classes: int = 10) -> Value:
    """The pre-activation network for small images, with bottleneck units; depth is 9n + 2.

    No convolution has a bias. Inputs: ``x`` (batch, 3, image, image), ``labels`` (batch,), int32.
    """
    count, rest = divmod(depth - 2, 9)
    if rest or count < 1:
        raise OptionError(f"preact_resnet: depth is 9n + 2, for example 29 or 164, got {depth}")
    h: Value = input("x", (batch, 3, image, image))
    with scope("stem"):
        h = conv2d(h, 16, 3, padding=1, bias=False)
    for stage in range(3):
        width = 64 * 2**stage
        for unit in range(count):
            with scope(f"stage{stage + 1}/unit{unit}"):
                stride = 2 if stage > 0 and unit == 0 else 1
                h = _preactivated(h, width, stride)
    with scope("output"):
        h = global_average_pool2d(relu(batch_norm(h)))
        logits = linear(h, classes)
    return softmax_cross_entropy(logits, input("labels", (batch,), dtype="int32"))


def _preactivated(x: Value, width: int, stride: int) -> Value:
    h = x
    for name, filters, window, step, padding in (
        ("reduce", width // 4, 1, 1, 0),
        ("window", width // 4, 3, stride, 1),
        ("expand", width, 1, 1, 0),
    ):
        with scope(name):
            h = conv2d(relu(batch_norm(h)), filters, window, step, padding, bias=False)
    if x.shape != h.shape:
        with scope("shortcut"):
            x = conv2d(x, width, 1, stride, bias=False)
    return add(h, x)
