"""Rules of layer, group, batch and RMS norm and of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.codegen.lines.program import Along, Lines, Numbers, Reduce
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import Rule, programs_of, strides_of
from graphc.codegen.text.operands import Operand, Places, folded_strides, on_frame, operand
from graphc.ir.graph import Node, Value
from graphc.ir.types import TensorType
from graphc.ops.frame import Frame
from graphc.ops.norm import Norm
from graphc.ops.norm_gradient import NormGradient

STATISTICS = (
    Reduce("Sum", {"total": "x"}),
    Numbers({"centre": "total / count"}),
    # A large mean is rounded; its error is removed from the variance and from y.
    Reduce("Sum", {"left": "x - centre", "square": "(x - centre) * (x - centre)"}),
    Numbers({"error": "left / count"}),
    Numbers({"scaling": "1 / sqrt(square / count - error * error + epsilon)"}),
)


@strides_of(Norm, NormGradient)
def _takes_strides(node: Node, name: str, type: TensorType, strides: tuple[int, ...]) -> bool:
    """Return true if an operand with these strides can be viewed in the frame of the norm without a
    copy."""
    op = node.op
    frame = op.frame(node) if isinstance(op, Norm) else node.attributes.frame()
    folded = frame.shape if type.shape == node.inputs[0].shape else type.shape
    return folded_strides(type, strides, folded) is not None


@programs_of("batch_norm", "group_norm", "layer_norm")
def _norm(node: Node, places: Places) -> NodeCalls:
    """Return the calls of layer, group or batch norm, which compute y, means and inverse
    deviations."""
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
    """A factory of operands, which views values in the frame of a norm."""

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

    def gradient(self, names: Sequence[str], values: Sequence[Value]) -> tuple[Operand, ...]:
        """Return operands of a norm's gradient, viewed as whole tensors, statistics or parameters
        by name."""
        ways = dict.fromkeys(("dy", "x", "dx"), self.whole)
        ways |= dict.fromkeys(("mean", "inverse"), self.statistic)
        pairs = zip(names, values, strict=True)
        return tuple(ways.get(name, self.parameter)(name, value) for name, value in pairs)


UNIT = "(x - mean) * inverse"
BY_SCALE = f"{UNIT} * dy"


def _gradient_lines(
    node: Node,
    places: Places,
    reduced: tuple[int, ...],
    stages: tuple[Reduce | Numbers, ...],
    per_line: Mapping[str, str] | None = None,
    per_element: Mapping[str, str] | None = None,
) -> NodeCalls:
    """Return the calls of a norm's gradient, which is a line program over the norm's frame."""
    op, frame = node.op, node.attributes.frame()
    see = _Folded(frame, places)
    program = Lines(
        frame.shape,
        reduced,
        see.gradient(op.inputs, node.inputs),
        see.gradient(op.outputs, node.outputs),
        stages,
        per_line=per_line or {},
        per_element=per_element or {},
        constants={"count": float(frame.count)},
    )
    return NodeCalls((Along(op.name, program),))


@programs_of("norm_input_gradient")
def _norm_input_gradient(node: Node, places: Places) -> NodeCalls:
    stages = (
        Reduce("Sum", {"plain": "dy * scale", "along": f"dy * scale * ({UNIT})"}),
        Numbers({"level": "plain / count", "slope": "along / count"}),
    )
    dx = f"(dy * scale - level - {UNIT} * slope) * inverse"
    reduced = node.attributes.frame().statistic_axes
    return _gradient_lines(node, places, reduced, stages, per_element={"dx": dx})


def _sums(sources: Mapping[str, str]) -> Rule:
    """Return a rule for gradients of parameters: each output sums an expression over all elements
    that share a parameter."""
    totals = {f"total_{name}": source for name, source in sources.items()}
    per_line = {name: f"total_{name}" for name in sources}

    def rule(node: Node, places: Places) -> NodeCalls:
        reduced = node.attributes.frame().summed_axes
        return _gradient_lines(node, places, reduced, (Reduce("Sum", totals),), per_line=per_line)

    return rule


programs_of("norm_bias_gradient")(_sums({"dbias": "dy"}))
programs_of("norm_scale_gradient")(_sums({"dscale": BY_SCALE}))
programs_of("norm_parameter_gradients")(_sums({"dscale": BY_SCALE, "dbias": "dy"}))


@programs_of("norm_gradients")
def _norm_gradients(node: Node, places: Places) -> NodeCalls:
    """Return the calls of a norm's gradient: a line program that passes over dy and x for sums,
    then for dx."""
    stages = (
        Reduce("Sum", {"along": BY_SCALE, "plain": "dy"}),
        Numbers({"level": "plain / count", "slope": "along / count"}),
    )
    return _gradient_lines(
        node,
        places,
        node.attributes.frame().statistic_axes,
        stages,
        per_line={"dscale": "along", "dbias": "plain"},
        per_element={"dx": f"(dy - level - {UNIT} * slope) * (scale * inverse)"},
    )


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
