"""Functions whose windows slide, by the number of axes that they slide over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import graphc
from graphc.ir.graph import Value

ByAxes = Mapping[int, Callable[..., Value]]

CONVOLUTIONS: ByAxes = {1: graphc.conv1d, 2: graphc.conv2d, 3: graphc.conv3d}
TRANSPOSED_CONVOLUTIONS: ByAxes = {
    1: graphc.conv_transpose1d,
    2: graphc.conv_transpose2d,
    3: graphc.conv_transpose3d,
}
MAX_POOLS: ByAxes = {1: graphc.max_pool1d, 2: graphc.max_pool2d, 3: graphc.max_pool3d}
AVERAGE_POOLS: ByAxes = {
    1: graphc.average_pool1d,
    2: graphc.average_pool2d,
    3: graphc.average_pool3d,
}
