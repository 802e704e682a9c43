"""Functions with sliding windows, by the number of axes along which windows slide."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphc.ir.graph import Value
from graphc.ops.conv_layers import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from graphc.ops.pool_axes import (
    average_pool1d,
    average_pool2d,
    average_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)

ByAxes = Mapping[int, Callable[..., Value]]

CONVOLUTIONS: ByAxes = {1: conv1d, 2: conv2d, 3: conv3d}
TRANSPOSED_CONVOLUTIONS: ByAxes = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}
MAX_POOLS: ByAxes = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}
AVERAGE_POOLS: ByAxes = {1: average_pool1d, 2: average_pool2d, 3: average_pool3d}
