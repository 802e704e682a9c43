"""Residual networks: He, Zhang, Ren and Sun (2015, 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.errors import OptionError, choose
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classifier
from graphc.ops.activation import relu
from graphc.ops.batch_norm import batch_norm
from graphc.ops.conv_layers import conv2d
from graphc.ops.elementwise import add
from graphc.ops.pool_axes import average_pool2d, global_average_pool2d, max_pool2d
from graphc.ops.shape import flatten

UNITS = {
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    500: (8, 60, 90, 8),
    1001: (15, 121, 182, 15),
}
"""Nominal depth → units of the four stages; the depth is about 3 · units + 2."""


RESNET_FORMS = ("baseline", "common")


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a network. The form ``common`` has no biases, and no relu before the sum."""

    common: bool

    def layer(self, x: Value, filters: int, window: int, stride: int, act: bool = True) -> Value:
        h = conv2d(x, filters, window, stride, window // 2, bias=not self.common)
        return relu(batch_norm(h)) if act else batch_norm(h)

    def bottleneck(self, x: Value, filters: int, stride: int, project: bool) -> Value:
        act = not self.common
        with scope("reduce"):
            h = self.layer(x, filters, 1, 1)
        with scope("window"):
            h = self.layer(h, filters, 3, stride)
        with scope("expand"):
            h = self.layer(h, 4 * filters, 1, 1, act)
        if project:
            with scope("shortcut"):
                x = self.layer(x, 4 * filters, 1, stride, act)
        return relu(add(h, x)) if self.common else add(h, x)


def resnet(
    depth: int = 50,
    batch: int = 32,
    image: int = 224,
    classes: int = 1000,
    units: Sequence[int] = (),
    form: str = "baseline",
    dtype: str = "float32",
) -> Value:
    """Bottleneck residual network with four stages (He et al., 2015).

    Form ``baseline`` is the network measured by Chen et al. (2016). Convolutions have biases. Batch
    norm and relu follow every convolution, including the expansion and the projection. Nothing
    follows the sum, and the stem's pooling is not padded. Form ``common`` is the network of He et
    al. as usually trained, with the stride in the 3x3 convolution. `units` gives the units of the
    four stages and overrides `depth`. Inputs: ``x`` (batch, 3, image, image) and ``labels``
    (batch,), int32.
    """
    stages = tuple(units) or UNITS.get(depth, ())
    if len(stages) != 4 or any(not isinstance(n, int) or n < 1 for n in stages):
        raise OptionError(
            f"resnet: depth must be one of {', '.join(map(str, UNITS))}; else give the units of "
            f"the four stages as units=(a,b,c,d); got depth={depth!r}, units={units!r}"
        )
    common = choose("resnet: form", form, RESNET_FORMS) == "common"
    style = _Form(common)
    h: Value = input("x", (batch, 3, image, image), dtype)
    with scope("stem"):
        h = max_pool2d(style.layer(h, 64, 7, 2), 3, 2, 1 if common else 0)
    for stage, count in enumerate(stages):
        for unit in range(count):
            with scope(f"stage{stage + 1}/unit{unit}"):
                stride = 2 if stage > 0 and unit == 0 else 1
                h = style.bottleneck(h, 64 * 2**stage, stride, project=unit == 0)
    h = average_pool2d(h, h.shape[2:])
    return classifier(flatten(h), classes)


def preact_resnet(
    depth: int = 29,
    batch: int = 32,
    image: int = 32,
    classes: int = 10,
    dtype: str = "float32",
) -> Value:
    """Pre-activation residual network for small images (He et al., 2016); depth is 9n + 2.

    No convolution has a bias. Inputs: ``x`` (batch, 3, image, image), ``labels`` (batch,), int32.
    """
    count, rest = divmod(depth - 2, 9)
    if rest or count < 1:
        raise OptionError(
            f"preact_resnet: depth must be 9n + 2, for example 29 or 164, got {depth}"
        )
    h: Value = input("x", (batch, 3, image, image), dtype)
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
    return classifier(h, classes)


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
