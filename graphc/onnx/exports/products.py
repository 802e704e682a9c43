"""Export of matrix products and convolutions."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.onnx.emission import Emission, exports


@exports("linear")
def _linear(node: Node, on: Emission, x: str, weight: str, bias: str) -> str:
    """Emit only the product and bias; a forward graph has the activation as a separate node."""
    return on("Gemm", x, weight, bias, transB=1)


@exports("matmul")
def _matmul(node: Node, on: Emission, a: str, b: str, *sum: str) -> str:
    flags, dtype = node.attributes, node.output.type.dtype
    left, right = node.inputs[:2]
    if flags.wide:
        a, b = on.cast(a, left.type.dtype, dtype), on.cast(b, right.type.dtype, dtype)
    if left.type.rank == right.type.rank == 2 and (flags.transpose_a or flags.transpose_b or sum):
        return on("Gemm", a, b, *sum, transA=int(flags.transpose_a), transB=int(flags.transpose_b))
    if flags.transpose_a:
        a = turned(on, a, left.type.rank)
    if flags.transpose_b:
        b = turned(on, b, right.type.rank)
    return on("MatMul", a, b)


@exports("scaled_matmul")
def _scaled_matmul(node: Node, on: Emission, a: str, b: str, *sum: str) -> str:
    factor = on.number(node.attributes.alpha, node.output.type.dtype)
    scaled = on("Mul", _matmul(node, on, a, b), factor)
    return on("Add", scaled, *sum) if sum else scaled


def turned(on: Emission, x: str, rank: int) -> str:
    """Transpose the last two axes of a tensor with `rank` axes."""
    return on("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


@exports("conv2d")
def _conv2d(node: Node, on: Emission, x: str, w: str, *bias: str) -> str:
    return on("Conv", x, w, *bias, kernel_shape=node.inputs[1].shape[2:], **_geometry(node))


def _geometry(node: Node) -> dict[str, object]:
    a = node.attributes
    return {
        "strides": list(a.stride),
        "pads": [*a.padding[:2], *a.padding[-2:]],
        "dilations": list(a.dilation),
        "group": a.groups,
    }


@exports("conv2d_input_gradient")
def _conv_transpose2d(node: Node, on: Emission, dy: str, w: str) -> str:
    a, (y, weight) = node.attributes, node.inputs
    window = weight.shape[2:]
    axes = zip(
        y.shape[2:], a.stride, a.padding[:2], a.padding[-2:], a.dilation, window, strict=True
    )
    least = [(n - 1) * s - p - q + d * (k - 1) + 1 for n, s, p, q, d, k in axes]
    extra = [n - m for n, m in zip(node.output.shape[2:], least, strict=True)]
    return on("ConvTranspose", dy, w, kernel_shape=window, output_padding=extra, **_geometry(node))
