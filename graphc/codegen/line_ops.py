"""Which line program an op's node is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphc.codegen.calls import NodeCalls, Scratch
from graphc.codegen.elementwise_ops import Places, Rule
from graphc.codegen.layout import Operand, counter, on_frame, operand
from graphc.codegen.lines import Computed, Lines, Numbers, Reduce, line_kernel
from graphc.codegen.scalar import arithmetic_dtype
from graphc.codegen.split import lines_kernels
from graphc.ir.expression import Expression, parse
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, TensorType, int64
from graphc.ops.frame import Frame
from graphc.ops.fused_reduce import OPERAND, FusedReduce
from graphc.ops.norm import Norm, NormParameterGradient

# --- reductions ---


PEAK = Reduce("Max", {"peak": "x"})
SUM = Reduce("Sum", {"total": "x"})
SQUARES = Reduce("Sum", {"total": "x * x"})

REDUCTIONS: Mapping[str, tuple[Reduce, str]] = {
    "max": (PEAK, "peak"),
    "mean": (SUM, "total / count"),
    "square_sum": (SQUARES, "total"),
    "sum": (SUM, "total"),
}
"""What is combined along a line, and what is made of that."""


def _reduction(node: Node, places: Places) -> NodeCalls:
    (x,) = node.inputs
    axes = getattr(node.attributes, "axes", tuple(range(x.type.rank)))
    return _reduced(
        node, places, node.op.name, x.shape, axes, (operand("x", x, places[x], x.shape),)
    )


def _fused_reduction(node: Node, places: Places) -> NodeCalls:
    op, given = node.op, node.attributes
    assert isinstance(op, FusedReduce)
    shape = op.operand(node).shape
    program = op.scalar_program(given, tuple(value.type.dtype for value in node.inputs))
    computed: Computed | None = Computed(OPERAND, given.order, program.expressions, program.locals)
    names = program.inputs
    if not given.members:
        computed, names = None, (OPERAND,)
    inputs = [
        operand(name, value, places[value], shape)
        for name, value in zip(names, node.inputs, strict=True)
    ]
    return _reduced(node, places, given.reduction, shape, given.axes, inputs, computed)


def _finish(node: Node, result: str) -> tuple[Expression, dict[str, tuple[DType, Expression]]]:
    """What a fused reduction stores of a line, and what it computes for that of the result."""
    op = node.op
    if not isinstance(op, FusedReduce) or not node.attributes.after:
        return parse(result), {}
    program = op.program_behind(node)
    made = {name: e.specialize({"x0": "result"}) for name, e in program.expressions.items()}
    locals = {name: (program.locals[name], made[name]) for name in program.locals}
    (y,) = program.outputs
    return made[y], {"result": (op.result(node).dtype, parse(result)), **locals}


def _reduced(
    node: Node,
    places: Places,
    reduction: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    inputs: Sequence[Operand],
    computed: Computed | None = None,
) -> NodeCalls:
    stage, result = REDUCTIONS[reduction]
    stored, finish = _finish(node, result)
    y, kept = node.output, tuple(1 if i in axes else n for i, n in enumerate(shape))
    program = Lines(
        shape,
        axes,
        tuple(inputs),
        (on_frame("y", y, places[y], kept, shape),),
        (stage,),
        per_line={"y": stored},
        constants={"count": float(math.prod(shape[axis] for axis in axes))},
        computed=computed,
        finish=finish,
    )
    return lines_kernels(node.op.name, program)


# --- softmax ---


def _along_axis(stages: Sequence[Reduce | Numbers], result: str) -> Rule:
    """All operands have the output's shape, and lines run along one axis."""

    def rule(node: Node, places: Places) -> NodeCalls:
        y = node.output
        inputs = [
            operand(node.op.input_name(i), value, places[value], y.shape)
            for i, value in enumerate(node.inputs)
        ]
        name = node.op.output_name(0)
        program = Lines(
            y.shape,
            (node.attributes.axis,),
            tuple(inputs),
            (operand(name, y, places[y], y.shape),),
            tuple(stages),
            per_element={name: result},
        )
        return lines_kernels(node.op.name, program)

    return rule


TOTAL = Reduce("Sum", {"total": "exp(x - peak)"})


def _causal_softmax(node: Node, places: Places) -> NodeCalls:
    """Elements beyond a row's last column count as minus infinity, whatever x holds there."""
    (x,), y = node.inputs, node.output
    rank, (rows, columns) = y.type.rank, y.shape[-2:]
    seen = "where(column <= row + shift, {}, {})".format
    program = Lines(
        y.shape,
        (rank - 1,),
        (
            operand("x", x, places[x], y.shape),
            counter("column", int64, rank - 1, rank),
            counter("row", int64, rank - 2, rank),
        ),
        (operand("y", y, places[y], y.shape),),
        (
            Reduce("Max", {"peak": seen("x", "lowest")}),
            Reduce("Sum", {"total": seen("exp(x - peak)", "0")}),
        ),
        per_element={"y": seen("exp(x - peak) / total", "0")},
        constants={"shift": float(columns - rows), "lowest": -math.inf},
    )
    return lines_kernels(node.op.name, program)


def _cross_entropy(node: Node, places: Places) -> NodeCalls:
    """A loss a row, then their mean. A label out of range chooses nothing; none is read out of
    bounds."""
    logits, labels = node.inputs
    loss, probabilities = node.outputs
    rows = logits.shape[0]
    wide = arithmetic_dtype(logits.type.dtype)
    row_loss = Operand("row_loss", wide, (1, 0), Scratch(0))
    by_row = Lines(
        logits.shape,
        (1,),
        (
            operand("x", logits, places[logits], logits.shape),
            on_frame("label", labels, places[labels], (rows, 1), logits.shape),
            counter("place", int64, 1, 2),
        ),
        (row_loss, operand("probabilities", probabilities, places[probabilities], logits.shape)),
        (PEAK, Reduce("Sum", {**TOTAL.of, "chosen": "where(place == label, x - peak, 0)"})),
        per_line={"row_loss": "log(total) - chosen"},
        per_element={"probabilities": "exp(x - peak) / total"},
    )
    mean = Lines(
        (rows,),
        (0,),
        (row_loss.on((1,)),),
        (operand("loss", loss, places[loss], (rows,)),),
        (Reduce("Sum", {"total": "row_loss"}),),
        per_line={"loss": "total / count"},
        constants={"count": float(rows)},
    )
    name = node.op.name
    launches = line_kernel(name, by_row), line_kernel(name, mean)
    return NodeCalls(launches, (TensorType((rows,), wide),))


# --- norms ---


STATISTICS = (
    Reduce("Sum", {"total": "x"}),
    Numbers({"centre": "total / count"}),
    # A large mean is rounded: what it leaves over is taken out of the variance and of y.
    Reduce("Sum", {"left": "x - centre", "square": "(x - centre) * (x - centre)"}),
    Numbers({"error": "left / count"}),
    Numbers({"scaling": "1 / sqrt(square / count - error * error + epsilon)"}),
)


def _norm(node: Node, places: Places) -> NodeCalls:
    """Layer, group and batch norm: y, the means and the inverse deviations."""
    op = node.op
    assert isinstance(op, Norm)
    frame, (y, mean, inverse) = op.frame(node), node.outputs
    see = _Folded(frame, places)
    program = Lines(
        frame.shape,
        frame.statistic_axes,
        (
            see.whole("x", node.inputs[0]),
            see.parameter("scale", node.inputs[1]),
            see.parameter("bias", node.inputs[2]),
        ),
        (see.whole("y", y), see.statistic("mean", mean), see.statistic("inverse", inverse)),
        STATISTICS,
        per_line={"mean": "centre", "inverse": "scaling"},
        per_element={"y": "(x - centre - error) * scaling * scale + bias"},
        constants={"count": float(frame.count), "epsilon": node.attributes.epsilon},
    )
    return lines_kernels(op.name, program)


class _Folded:
    """Values as a norm's frame sees them."""

    def __init__(self, frame: Frame, places: Places) -> None:
        self.frame, self.places = frame, places

    def whole(self, name: str, value: Value) -> Operand:
        return on_frame(name, value, self.places[value], self.frame.shape, self.frame.shape)

    def parameter(self, name: str, value: Value) -> Operand:
        own = self.frame.parameter_shape
        return on_frame(name, value, self.places[value], own, self.frame.shape)

    def statistic(self, name: str, value: Value) -> Operand:
        own = self.frame.statistic_shape
        return on_frame(name, value, self.places[value], own, self.frame.shape)


UNIT = "(x - mean) * inverse"


def _norm_input_gradient(node: Node, places: Places) -> NodeCalls:
    dy, x, mean, inverse, scale = node.inputs
    frame = node.attributes.frame()
    see = _Folded(frame, places)
    program = Lines(
        frame.shape,
        frame.statistic_axes,
        (
            see.whole("dy", dy),
            see.whole("x", x),
            see.statistic("mean", mean),
            see.statistic("inverse", inverse),
            see.parameter("scale", scale),
        ),
        (see.whole("dx", node.output),),
        (
            Reduce("Sum", {"plain": "dy * scale", "along": f"dy * scale * ({UNIT})"}),
            Numbers({"level": "plain / count", "slope": "along / count"}),
        ),
        per_element={"dx": f"(dy * scale - level - {UNIT} * slope) * inverse"},
        constants={"count": float(frame.count)},
    )
    return lines_kernels(node.op.name, program)


def _norm_parameter_gradient(source: str) -> Rule:
    def rule(node: Node, places: Places) -> NodeCalls:
        op, frame = node.op, node.attributes.frame()
        assert isinstance(op, NormParameterGradient)
        see = _Folded(frame, places)
        dy, *others = node.inputs
        inputs = [see.whole("dy", dy)]
        if others:
            x, mean, inverse = others
            inputs += [see.whole("x", x), see.statistic("mean", mean)]
            inputs.append(see.statistic("inverse", inverse))
        name = op.output_name(0)
        program = Lines(
            frame.shape,
            op.summed_axes(frame),
            tuple(inputs),
            (see.parameter(name, node.output),),
            (Reduce("Sum", {"total": source}),),
            per_line={name: "total"},
        )
        return lines_kernels(op.name, program)

    return rule


def _rms_norm(node: Node, places: Places) -> NodeCalls:
    x, scale = node.inputs
    y, inverse = node.outputs
    program = Lines(
        x.shape,
        (x.type.rank - 1,),
        (operand("x", x, places[x], x.shape), operand("scale", scale, places[scale], x.shape)),
        (
            operand("y", y, places[y], x.shape),
            operand("inverse", inverse, places[inverse], x.shape),
        ),
        (
            Reduce("Sum", {"square": "x * x"}),
            Numbers({"scaling": "1 / sqrt(square / count + epsilon)"}),
        ),
        per_line={"inverse": "scaling"},
        per_element={"y": "x * scaling * scale"},
        constants={"count": float(x.shape[-1]), "epsilon": node.attributes.epsilon},
    )
    return lines_kernels(node.op.name, program)


RULES: Mapping[str, Rule] = {
    "batch_norm": _norm,
    "causal_softmax": _causal_softmax,
    "fused_reduce": _fused_reduction,
    "group_norm": _norm,
    "layer_norm": _norm,
    "log_softmax": _along_axis((PEAK, TOTAL), "x - peak - log(total)"),
    "log_softmax_gradient": _along_axis((Reduce("Sum", {"total": "dy"}),), "dy - exp(y) * total"),
    "norm_bias_gradient": _norm_parameter_gradient("dy"),
    "norm_input_gradient": _norm_input_gradient,
    "norm_scale_gradient": _norm_parameter_gradient(f"{UNIT} * dy"),
    "rms_norm": _rms_norm,
    "softmax": _along_axis((PEAK, TOTAL), "exp(x - peak) / total"),
    "softmax_cross_entropy": _cross_entropy,
    "softmax_gradient": _along_axis((Reduce("Sum", {"along": "y * dy"}),), "(dy - along) * y"),
    **dict.fromkeys(REDUCTIONS, _reduction),
}
"""Ops whose elements belong together along lines."""
