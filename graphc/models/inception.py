"""Inception networks: Szegedy, Vanhoucke, Ioffe, Shlens and Wojna (2015)."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import OptionError
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classifier
from graphc.ops.activation import relu
from graphc.ops.batch_norm import batch_norm
from graphc.ops.concat import concat
from graphc.ops.conv_layers import conv2d
from graphc.ops.pool_axes import average_pool2d, global_average_pool2d, max_pool2d
from graphc.ops.random import dropout

ROW, COLUMN = (1, 7), (7, 1)

LEAST_IMAGE = 75
"""Minimum height and width of images; smaller ones have no pixels left in the last blocks."""


def inception_v3(
    batch: int = 32,
    image: int = 299,
    classes: int = 1000,
    width: int = 32,
    drop: float = 0.5,
    dtype: str = "float32",
) -> Value:
    """Inception v3 (Szegedy et al., 2015), without its auxiliary classifier.

    Its blocks have up to four independent branches. `width` is the number of filters of the first
    convolution; all others scale with it. Inputs: ``x``
    (batch, 3, image, image) and ``labels`` (batch,), int32.
    """
    if image < LEAST_IMAGE:
        raise OptionError(f"inception_v3: image must be at least {LEAST_IMAGE}, got {image}")
    if width % 2:
        raise OptionError(f"inception_v3: width must be even, got {width}")
    build = _Blocks(width)
    h: Value = input("x", (batch, 3, image, image), dtype)
    with scope("stem"):
        h = build.conv(h, 32, 3, 2, 0, "a")
        h = build.conv(build.conv(h, 32, 3, 1, 0, "b"), 64, 3, 1, 1, "c")
        h = build.conv(max_pool2d(h, 3, 2), 80, 1, 1, 0, "d")
        h = max_pool2d(build.conv(h, 192, 3, 1, 0, "e"), 3, 2)
    for number, filters in enumerate((32, 64, 64)):
        with scope(f"block{number + 1}"):
            h = build.squares(h, filters)
    with scope("reduction1"):
        h = build.halved_squares(h)
    for number, filters in enumerate((128, 160, 160, 192)):
        with scope(f"block{number + 4}"):
            h = build.bands(h, filters)
    with scope("reduction2"):
        h = build.halved_bands(h)
    for number in range(2):
        with scope(f"block{number + 8}"):
            h = build.crosses(h)
    return classifier(dropout(global_average_pool2d(h), drop), classes)


class _Blocks:
    """Builders of blocks. Filter counts are for a `width` of 32 and are scaled to `width`."""

    def __init__(self, width: int) -> None:
        self.width = width

    def conv(
        self,
        x: Value,
        filters: int,
        window: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        name: str = "",
    ) -> Value:
        """Apply convolution, batch norm and relu."""
        with scope(name):
            y = conv2d(x, filters * self.width // 32, window, stride, padding, bias=False)
            return relu(batch_norm(y, 1e-3))

    def pooled(self, x: Value, filters: int) -> Value:
        return self.conv(average_pool2d(x, 3, 1, 1), filters, 1, name="pool")

    def squares(self, x: Value, filters: int) -> Value:
        """Build a block of 1x1, 5x5 and double 3x3 convolutions (figure 5 of the paper)."""
        five = self.conv(self.conv(x, 48, 1, name="five0"), 64, 5, 1, 2, "five1")
        three = self.conv(self.conv(x, 64, 1, name="three0"), 96, 3, 1, 1, "three1")
        three = self.conv(three, 96, 3, 1, 1, "three2")
        return concat([self.conv(x, 64, 1, name="one"), five, three, self.pooled(x, filters)], 1)

    def halved_squares(self, x: Value) -> Value:
        """Build a block that halves rows and columns (figure 10)."""
        three = self.conv(self.conv(x, 64, 1, name="three0"), 96, 3, 1, 1, "three1")
        three = self.conv(three, 96, 3, 2, 0, "three2")
        return concat([self.conv(x, 384, 3, 2, 0, "one"), three, max_pool2d(x, 3, 2)], 1)

    def band(self, x: Value, filters: int, windows: Sequence[tuple[int, int]], name: str) -> Value:
        """Apply a sequence of row and column windows; the last one has 192 filters."""
        for number, window in enumerate(windows, 1):
            made = 192 if number == len(windows) else filters
            padding = window[0] // 2, window[1] // 2
            x = self.conv(x, made, window, 1, padding, f"{name}{number}")
        return x

    def bands(self, x: Value, filters: int) -> Value:
        """Build a block of 7x7 convolutions factored into rows and columns (figure 6)."""
        once = self.conv(x, filters, 1, name="once0")
        once = self.band(once, filters, (ROW, COLUMN), "once")
        twice = self.conv(x, filters, 1, name="twice0")
        twice = self.band(twice, filters, (COLUMN, ROW, COLUMN, ROW), "twice")
        return concat([self.conv(x, 192, 1, name="one"), once, twice, self.pooled(x, 192)], 1)

    def halved_bands(self, x: Value) -> Value:
        """Build a block that halves rows and columns after a factored 7x7 convolution."""
        three = self.conv(self.conv(x, 192, 1, name="three0"), 320, 3, 2, 0, "three1")
        seven = self.band(self.conv(x, 192, 1, name="seven0"), 192, (ROW, COLUMN), "seven")
        seven = self.conv(seven, 192, 3, 2, 0, "seven3")
        return concat([three, seven, max_pool2d(x, 3, 2)], 1)

    def cross(self, x: Value, name: str) -> Value:
        """Apply parallel 1x3 and 3x1 convolutions."""
        parts = [
            self.conv(x, 384, (1, 3), 1, (0, 1), f"{name}/row"),
            self.conv(x, 384, (3, 1), 1, (1, 0), f"{name}/column"),
        ]
        return concat(parts, 1)

    def crosses(self, x: Value) -> Value:
        """Build one of the widest blocks (figure 7)."""
        three = self.cross(self.conv(x, 384, 1, name="three0"), "three1")
        twice = self.conv(self.conv(x, 448, 1, name="twice0"), 384, 3, 1, 1, "twice1")
        parts = [self.conv(x, 320, 1, name="one"), three, self.cross(twice, "twice2")]
        return concat([*parts, self.pooled(x, 192)], 1)
