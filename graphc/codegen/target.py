"""The target of plans for a GPU: properties of the generated kernels that planners query."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from graphc.codegen.elementwise.updates import likeness
from graphc.codegen.strides import takes_strides
from graphc.codegen.workspace import gpu_workspace
from graphc.ir.graph import Node
from graphc.ir.op import Strided
from graphc.ir.types import (
    ROW_BYTES,
    Layout,
    TensorType,
    contiguous_strides,
    padded_strides,
    pieces,
)
from graphc.target import Target

MOST_PIECES_ON_A_GPU = 2**19
"""Maximum number of contiguous pieces of memory for a part inside a concatenation. If maps are
channels-last, a part has one piece per pixel.
"""


@dataclass(frozen=True)
class CudaTarget(Target, kind="cuda"):
    """The target for a GPU, with generated kernels and a BLAS. Strides are constants in the text of
    kernels."""

    least_alignment: ClassVar[int] = 256
    """The alignment that cuBLAS requires of a workspace."""
    prefers_channels_last: ClassVar[bool] = True
    prefers_filters_last: ClassVar[bool] = True
    prefers_heads_inside: ClassVar[bool] = True
    pads_rows: ClassVar[bool] = True
    fuses: ClassVar[bool] = True
    has_epilogues: ClassVar[bool] = True
    chunks_losses: ClassVar[bool] = True
    scales_products: ClassVar[bool] = True
    merges_norm_gradients: ClassVar[bool] = True
    shares_launches: ClassVar[bool] = True

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        return takes_strides(node, name, type, strides)

    def takes_part(self, node: Node, name: str, type: TensorType, layout: Layout) -> bool:
        """Return true if the node accepts its operand as a part of a concatenation. The algorithm
        of a product depends on the alignment of rows. So a part that products access must have
        aligned rows. It must not be a tensor whose rows would be padded outside of a concatenation.
        """
        if node.op.multiplies or node.op.convolves:
            size = type.dtype.itemsize
            steps = (s for n, s in zip(type.shape, layout.strides, strict=True) if n > 1)
            if layout.offset % ROW_BYTES or any(s != size and s % ROW_BYTES for s in steps):
                return False
            if size == 2 and padded_strides(type) != contiguous_strides(type):
                return False
        return self.takes_strides(node, name, type, layout.strides)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        return pieces(type, strides) <= MOST_PIECES_ON_A_GPU

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        return gpu_workspace(node, self.device, strided).types

    def launch_key(self, node: Node) -> Hashable | None:
        return likeness(node)
