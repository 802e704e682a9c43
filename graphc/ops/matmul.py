"""Matrix products. Transposes are attributes of the product, never copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import scipy.linalg.blas

from graphc.devices.device import Device
from graphc.errors import OptionError, ShapeError, quoted, truth
from graphc.ir.attributes import Between, OneOf
from graphc.ir.builder import apply, as_value, layer_scope
from graphc.ir.graph import Initial, Node, Value
from graphc.ir.op import REGISTRY, Array, Cost, Op, Recorder
from graphc.ir.operators import operator
from graphc.ir.types import TensorType, broadcast_shapes, compute_dtype
from graphc.ops.accumulation import check_sum, start_sum
from graphc.ops.activation import GeluTanh
from graphc.ops.choice import cast
from graphc.ops.cpu.numpy_expression import Lowering, evaluate, registers_type
from graphc.ops.elementwise import Elementwise, float_dtype, lowering_of
from graphc.ops.shape import reshape
from graphc.ops.weights import agree, bias_of, given_weight, he_weight, not_given


@dataclass(frozen=True, slots=True)
class MatmulAttributes:
    """Flags that transpose the last two axes of an operand, and the accumulation options."""

    transpose_a: bool = False
    transpose_b: bool = False
    wide: bool = False
    """True if the product of 16-bit operands is stored in float32."""
    accumulate: bool = False
    """True if the product of two matrices is added to a third operand: beta = 1 of a BLAS."""


class Matmul(Op):
    """y = op(a) · op(b) over the last two axes, leading axes broadcast; or sum + op(a) · op(b)."""

    name, inputs = "matmul", ("a", "b", "*sum")
    multiplies = True
    may_overwrite = {"y": ("sum",)}
    precision = "narrow"
    attributes = MatmulAttributes

    def infer(
        self, attributes: MatmulAttributes, a: TensorType, b: TensorType, *sum: TensorType
    ) -> TensorType:
        dtype = float_dtype(a, b)
        if attributes.wide:
            dtype = compute_dtype(dtype)
        if a.rank < 2 or b.rank < 2:
            raise ShapeError("operands need at least two axes; reshape vectors to matrices")
        rows, inner = a.shape[-2:][:: -1 if attributes.transpose_a else 1]
        inner_b, columns = b.shape[-2:][:: -1 if attributes.transpose_b else 1]
        if inner != inner_b:
            raise ShapeError(
                f"the inner extents differ: {inner} from a{'ᵀ' * attributes.transpose_a} "
                f"and {inner_b} from b{'ᵀ' * attributes.transpose_b}; transpose an operand, or "
                "check the layer's width"
            )
        batch = broadcast_shapes("batch axes", a.shape[:-2], b.shape[:-2])
        y = TensorType((*batch, rows, columns), dtype)
        check_sum(attributes.accumulate, sum, y)
        if sum and y.rank != 2:
            raise ShapeError(
                f"only a product of two matrices can be accumulated into a sum, got {a} and {b}"
            )
        return y

    def free_axes(self, node: Node, name: str) -> int:
        return 0 if node.attributes.accumulate else super().free_axes(node, name)

    def cost(self, node: Node) -> Cost:
        a = node.inputs[0].shape
        inner = a[-2] if node.attributes.transpose_a else a[-1]
        moved = super().cost(node)
        flops = node.output.type.elements * (2 * inner + node.attributes.accumulate)
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def gradient_a(self, node: Node, dy: Value, b: Value) -> Value:
        flags: MatmulAttributes = node.attributes
        dy = cast(dy, b.type.dtype)
        if flags.transpose_a:
            return self.product(node, b, dy, flags.transpose_b, True)
        return self.product(node, dy, b, False, not flags.transpose_b)

    def gradient_b(self, node: Node, dy: Value, a: Value) -> Value:
        flags: MatmulAttributes = node.attributes
        dy = cast(dy, a.type.dtype)
        if flags.transpose_b:
            return self.product(node, dy, a, True, flags.transpose_a)
        return self.product(node, a, dy, not flags.transpose_a, False)

    def product(
        self, node: Node, a: Value, b: Value, transpose_a: bool, transpose_b: bool
    ) -> Value:
        """Return a matrix product that is the gradient of an operand of `node`.

        The gradient pass sums it over axes along which the operand was broadcast.
        """
        return matmul(a, b, transpose_a, transpose_b)

    def gradient_sum(self, node: Node, dy: Value) -> tuple[Value, ...]:
        return (dy,) if node.attributes.accumulate else ()

    def kernel(
        self, record: Recorder, node: Node, a: Array, b: Array, *sum: Array, y: Array
    ) -> None:
        flags: MatmulAttributes = node.attributes
        if flags.accumulate:
            start_sum(record, sum, y)
            transposed = flags.transpose_a, flags.transpose_b
            record(_add_product, a, b, y, *transposed, getattr(flags, "alpha", 1.0))
            return
        left = a.swapaxes(-1, -2) if flags.transpose_a else a
        right = b.swapaxes(-1, -2) if flags.transpose_b else b
        record(np.matmul, left, right, out=y)


def _add_product(
    a: Array, b: Array, y: Array, transpose_a: bool, transpose_b: bool, alpha: float
) -> None:
    """Compute y += alpha · op(a) · op(b) in place, without scratch.

    A BLAS reads row-major matrices as their transposes, so it computes yᵀ += alpha · op(b)ᵀ ·
    op(a)ᵀ.
    """
    add_to = scipy.linalg.blas.dgemm if y.dtype == np.float64 else scipy.linalg.blas.sgemm
    add_to(alpha, b.T, a.T, 1.0, y.T, transpose_b, transpose_a, overwrite_c=True)


@dataclass(frozen=True, slots=True)
class ScaledMatmulAttributes(MatmulAttributes):
    """The attributes of a matrix product, and the factor `alpha`."""

    alpha: Annotated[float, Between()] = 1.0


class ScaledMatmul(Matmul):
    """y = alpha · op(a) · op(b), or sum + alpha · op(a) · op(b).

    `graphc.passes.scaled_products` makes such nodes.
    """

    name = "scaled_matmul"
    attributes = ScaledMatmulAttributes

    def product(
        self, node: Node, a: Value, b: Value, transpose_a: bool, transpose_b: bool
    ) -> Value:
        alpha = node.attributes.alpha
        flags = ScaledMatmulAttributes(transpose_a, transpose_b, alpha=alpha)
        return apply(ScaledMatmul, a, b, attributes=flags).output

    def kernel(
        self, record: Recorder, node: Node, a: Array, b: Array, *sum: Array, y: Array
    ) -> None:
        flags: ScaledMatmulAttributes = node.attributes
        super().kernel(record, node, a, b, *sum, y=y)
        if not flags.accumulate:  # otherwise `_add_product` applies the factor
            record(np.multiply, y, y.dtype.type(flags.alpha), out=y)


Activation = Literal["none", "gelu"]
ACTIVATIONS: Mapping[str, type[Elementwise]] = {"gelu": GeluTanh}
"""The activations of `linear` nodes, which the epilogues of GPU BLAS libraries can compute.

Their gelu is the approximation by tanh. Their relu turns NaN into 0, so it is not used.
"""


@dataclass(frozen=True, slots=True)
class LinearAttributes:
    """The activation applied before the result is written.

    `graphc.passes.fusion.epilogues` sets it.
    """

    activation: Annotated[Activation, OneOf(("none", *ACTIVATIONS))] = "none"


class Linear(Op):
    """y = x · weightᵀ + bias for x (rows, inputs), optionally followed by gelu."""

    name, inputs = "linear", ("x", "weight", "bias")
    multiplies = True
    precision = "narrow"
    attributes = LinearAttributes
    untimed_attributes = ("activation",)  # an epilogue's time is negligible

    def infer(
        self,
        attributes: LinearAttributes,
        x: TensorType,
        weight: TensorType,
        bias: TensorType,
    ) -> TensorType:
        dtype = float_dtype(x, weight, bias)
        if x.rank != 2 or weight.rank != 2 or x.shape[1] != weight.shape[1]:
            raise ShapeError(
                f"x must be (rows, inputs) and weight (outputs, inputs), got {x} and {weight}"
            )
        if bias.shape != weight.shape[:1]:
            raise ShapeError(
                f"bias must have one number per output, {weight.shape[:1]}, got {bias}"
            )
        return TensorType((x.shape[0], weight.shape[0]), dtype)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        lowering = _activation(node)
        return () if lowering is None else registers_type(lowering, node.output.type)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        flops = node.output.type.elements * (2 * node.inputs[0].shape[1] + 1)
        if node.attributes.activation != "none":
            flops += activation_of(node).cost(node).flops
        return Cost(flops, moved.bytes_read, moved.bytes_written)

    def gradient_x(self, node: Node, dy: Value, weight: Value) -> Value:
        return matmul(_of_sums(node, dy), weight)

    def gradient_weight(self, node: Node, dy: Value, x: Value) -> Value:
        return matmul(_of_sums(node, dy), x, transpose_a=True)

    def gradient_bias(self, node: Node, dy: Value) -> Value:
        return _of_sums(node, dy)

    def kernel(
        self, record: Recorder, node: Node, x: Array, weight: Array, bias: Array, *, y: Array
    ) -> None:
        record(np.matmul, x, weight.T, out=y)
        record(np.add, y, bias, out=y)
        lowering = _activation(node)
        if lowering is not None:
            record(evaluate(lowering, [y], [y], record.scratch))


def activation_of(node: Node) -> Elementwise:
    """Return the op of a linear node's activation; it must not be ``none``."""
    op = REGISTRY[ACTIVATIONS[node.attributes.activation].name]
    assert isinstance(op, Elementwise)
    return op


def _activation(node: Node) -> Lowering | None:
    """Return the activation as calls of NumPy functions, or None.

    16-bit floats are computed in float32.
    """
    if node.attributes.activation == "none":
        return None
    op, dtype = activation_of(node), compute_dtype(node.output.type.dtype)
    return lowering_of(op, op.attributes(), (dtype,), (dtype,))


def _of_sums(node: Node, dy: Value) -> Value:
    """Return the gradient of x · weightᵀ + bias.

    Raises `OptionError` for a node with an activation.
    """
    if node.attributes.activation != "none":
        raise OptionError(
            f"a linear node with the activation {node.attributes.activation!r} has no gradient; "
            "apply the activation as a separate op, which a plan for a GPU fuses after "
            "differentiation"
        )
    return dy


@operator("@")
def matmul(a: Value, b: Value, transpose_a: bool = False, transpose_b: bool = False) -> Value:
    """Multiply matrices a · b over the last two axes, each optionally transposed first.

    Leading axes broadcast. Raises `ShapeError` if the inner extents differ or an operand has fewer
    than two axes, and `DTypeError` unless both have one float dtype.
    """
    attributes = MatmulAttributes(
        truth("matmul: transpose_a", transpose_a), truth("matmul: transpose_b", transpose_b)
    )
    return apply(Matmul, a, b, attributes=attributes).output


def affine(x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Compute x · weightᵀ + bias on the last axis, with existing, for example shared, parameters.

    x is (..., inputs), `weight` (outputs, inputs), `bias` (outputs,), and the result (...,
    outputs). Raises `ShapeError` if the shapes do not fit.
    """
    inputs = as_value("affine", x).shape[-1:]
    if as_value("affine", weight).type.rank != 2 or inputs != weight.shape[1:]:
        raise ShapeError(
            f"affine: x must be (..., inputs) and weight (outputs, inputs), got {x.type} and "
            f"{weight.type}"
        )
    rows = reshape(x, (-1, x.shape[-1]))
    if bias is None:
        y = matmul(rows, weight, transpose_b=True)
    else:
        y = apply(Linear, rows, weight, bias).output
    return reshape(y, (*x.shape[:-1], weight.shape[0]))


def linear(
    x: Value,
    outputs: int | None = None,
    bias: Value | bool = True,
    trainable: bool = True,
    name: str | None = None,
    initial: Initial | None = None,
    weight: Value | None = None,
) -> Value:
    """Compute y = x · weightᵀ + bias on the last axis of float x: (..., inputs) to (..., outputs).

    Creates ``weight`` (outputs, inputs) and ``bias`` (outputs,), zero, in the current scope, or in
    ``name`` inside it. The weight is initialized by `initial`, by default He's rule for relu
    networks (uniform within ±√(6 / inputs); He et al., 2015). A given `weight` determines the
    sizes, and nothing is created. In that case `bias` must be a value; without it, no bias is
    added. Raises `ShapeError` for x without an axis, fewer than one output, or sizes that differ
    from those of the weight.
    """
    with layer_scope("linear", name):
        if as_value("linear", x).type.rank < 1:
            raise ShapeError(f"linear: the input must have at least one axis, got {x!r}")
        if weight is None:
            if outputs is None:
                raise not_given("linear", outputs=outputs)
            is_whole = isinstance(outputs, int | np.integer) and not isinstance(outputs, bool)
            if not is_whole or outputs < 1:
                raise ShapeError(
                    f"linear: outputs must be an integer of at least 1, got {quoted(outputs)}"
                )
            w = he_weight("linear", x, (outputs, x.shape[-1]), x.shape[-1], trainable, initial)
        else:
            w = given_weight("linear", weight, "(outputs, inputs)", trainable)
            agree(
                "linear",
                w,
                {"outputs": (outputs, w.shape[0]), "x's last axis": (x.shape[-1], w.shape[1])},
            )
        return affine(
            x, w, bias_of("linear", bias, w.shape[0], x.type.dtype, trainable, weight is None)
        )
