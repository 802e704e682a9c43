"""The gradients of a linear layer's weight and bias as one node.

A GPU's BLAS computes the gradient of the bias while it reads the gradient of the output for the
gradient of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphc.devices.device import Device
from graphc.errors import ShapeError
from graphc.ir.graph import Node
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, compute_dtype
from graphc.ops.elementwise import float_dtype
from graphc.ops.reduce import partial_sums, record_sum

WHOLE = "differentiate the product and the sum from which graphc made this op"


@dataclass(frozen=True, slots=True)
class ProductWithSumsAttributes:
    """The dtype of the results."""

    wide: bool = False
    """True if the results of 16-bit operands are stored in float32."""


class ProductWithSums(Op):
    """y = dyᵀ · x, and the sums of the columns of dy, for dy (rows, outputs) and x (rows, inputs).

    `graphc.passes.fusion.bias_gradients` makes such nodes. There is no second derivative.
    """

    name, inputs = "product_with_sums", ("dy", "x")
    outputs = ("y", "sums")
    multiplies = True
    precision = "narrow"
    attributes = ProductWithSumsAttributes
    instead_of_gradient = {"dy": WHOLE, "x": WHOLE}

    def infer(
        self, attributes: ProductWithSumsAttributes, dy: TensorType, x: TensorType
    ) -> tuple[TensorType, TensorType]:
        dtype = float_dtype(dy, x)
        if attributes.wide:
            dtype = compute_dtype(dtype)
        if dy.rank != 2 or x.rank != 2 or dy.shape[0] != x.shape[0]:
            raise ShapeError(
                f"dy must be (rows, outputs) and x (rows, inputs), with equal rows, got {dy} and "
                f"{x}"
            )
        outputs = dy.shape[1]
        return TensorType((outputs, x.shape[1]), dtype), TensorType((outputs,), dtype)

    def cost(self, node: Node) -> Cost:
        dy, x = (value.type for value in node.inputs)
        moved = super().cost(node)
        flops = 2 * dy.elements * x.shape[1] + dy.elements
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        return partial_sums(node.inputs[0].type, (0,))

    def kernel(
        self, record: Recorder, node: Node, dy: Array, x: Array, *, y: Array, sums: Array
    ) -> None:
        record(np.matmul, dy.T, x, out=y)
        record_sum(record, dy, sums, (0,), False)
