"""Rules of layer, group, batch and RMS norm and of their gradients."""

from __future__ import annotations

from graphc.codegen.lines.program import Along, Lines, Numbers, Reduce
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import Rule, programs_of, strides_of
from graphc.codegen.text.operands import Operand, Places, folded_strides, on_frame, operand
from graphc.ir.graph import Node, Value
from graphc.ir.types import TensorType
from graphc.ops.frame import Frame
from graphc.ops.norm import Norm
from graphc.ops.norm_gradient import NormGradient, NormParameterGradient

STATISTICS = (
    Reduce("Sum", {"total": "x"}),
    Numbers({"centre": "total / count"}),
    # A large mean is rounded: what it leaves over is taken out of the variance and of y.
    Reduce("Sum", {"left": "x - centre", "square": "(x - centre) * (x - centre)"}),
    Numbers({"error": "left / count"}),
    Numbers({"scaling": "1 / sqrt(square / count - error * error + epsilon)"}),
)


@strides_of(Norm, NormGradient)
def _takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Whether a tensor that lies so can be seen in the folded shape of the norm."""
    op = node.op
    frame = op.frame(node) if isinstance(op, Norm) else node.attributes.frame()
    folded = frame.shape if type.shape == node.inputs[0].shape else type.shape
    return folded_strides(type, strides, folded) is not None


@programs_of("batch_norm", "group_norm", "layer_norm")
def _norm(node: Node, places: Places) -> NodeCalls:
    """The calls of layer, group and batch norm: y, the means and the inverse deviations."""
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
    return NodeCalls((Along(op.name, program),))


class _Folded:
    """Makes operands of values as a norm's frame sees them."""

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


@programs_of("norm_input_gradient")
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
    return NodeCalls((Along(node.op.name, program),))


def _norm_parameter_gradient(source: str) -> Rule:
    """The rule of a gradient that sums an expression over all that shares a parameter."""

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
            frame.summed_axes,
            tuple(inputs),
            (see.parameter(name, node.output),),
            (Reduce("Sum", {"total": source}),),
            per_line={name: "total"},
        )
        return NodeCalls((Along(op.name, program),))

    return rule


programs_of("norm_bias_gradient")(_norm_parameter_gradient("dy"))
programs_of("norm_scale_gradient")(_norm_parameter_gradient(f"{UNIT} * dy"))


@programs_of("norm_parameter_gradients")
def _norm_parameter_gradients(node: Node, places: Places) -> NodeCalls:
    """Both sums of one reading of dy and x."""
    dy, x, mean, inverse = node.inputs
    dscale, dbias = node.outputs
    frame = node.attributes.frame()
    see = _Folded(frame, places)
    program = Lines(
        frame.shape,
        frame.summed_axes,
        (
            see.whole("dy", dy),
            see.whole("x", x),
            see.statistic("mean", mean),
            see.statistic("inverse", inverse),
        ),
        (see.parameter("dscale", dscale), see.parameter("dbias", dbias)),
        (Reduce("Sum", {"along": f"{UNIT} * dy", "plain": "dy"}),),
        per_line={"dscale": "along", "dbias": "plain"},
    )
    return NodeCalls((Along(node.op.name, program),))


@programs_of("norm_gradients")
def _norm_gradients(node: Node, places: Places) -> NodeCalls:
    """Two readings of dy and x: for the sums, and for dx."""
    dy, x, mean, inverse, scale = node.inputs
    dx, dscale, dbias = node.outputs
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
        (
            see.whole("dx", dx),
            see.parameter("dscale", dscale),
            see.parameter("dbias", dbias),
        ),
        (
            Reduce("Sum", {"along": f"{UNIT} * dy", "plain": "dy"}),
            Numbers({"level": "plain / count", "slope": "along / count"}),
        ),
        per_line={"dscale": "along", "dbias": "plain"},
        per_element={"dx": f"(dy - level - {UNIT} * slope) * (scale * inverse)"},
        constants={"count": float(frame.count)},
    )
    return NodeCalls((Along(node.op.name, program),))


@programs_of("rms_norm")
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
    return NodeCalls((Along(node.op.name, program),))
