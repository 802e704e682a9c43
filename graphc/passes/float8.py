"""Linear layers with 8-bit operands (Micikevicius et al., 2022), in mixed precision ``fp8``.

The pass follows the one to bfloat16 and replaces products of a matrix and a parameter. Rows and
weights are stored as float8_e4m3 and gradients as float8_e5m2 with delayed scaling, see
`graphc.ops.float8`. Products stay in bfloat16

- if they are the last ones before a loss or an output, whose errors reach the loss directly,
- if an extent is no multiple of 16, which tensor cores require,
- in attention and convolutions.

The rows are saved for the gradient in 8 bits only. As the scale of a step is a state that the step
updates at its end, a recomputed copy has the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.names import FLOAT8_STATES
from graphc.ir.op import REGISTRY, Op
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import bfloat16, float8_e4m3, float32
from graphc.ops.choice import Cast
from graphc.ops.collective import all_gather
from graphc.ops.concat import concat, split
from graphc.ops.float8 import (
    LAST,
    MULTIPLE,
    Float8Linear,
    Quantization,
    Quantize,
    QuantizeAttributes,
    QuantizeBoth,
    QuantizeTurned,
    ScaleUpdate,
    casts_a_parameter,
)
from graphc.ops.matmul import Linear, Matmul
from graphc.ops.reduce import max as largest
from graphc.ops.row_cross_entropy import LabelOp
from graphc.ops.shape import reshape


def to_float8(graph: Graph) -> Graph:
    """Return a forward graph in mixed precision with 8-bit operands of its linear layers."""
    layers = {node: each for node, each in linear_layers(graph).items() if each.fits}
    return _Narrowed(graph, layers).run() if layers else graph


@dataclass(frozen=True, slots=True)
class Layer:
    """A product of `rows` and the parameter `weight`, both before their casts to bfloat16."""

    rows: Value
    weight: State
    extents: tuple[int, int, int]
    """The extents of the product: rows, inputs, outputs."""

    @property
    def fits(self) -> bool:
        """True if all extents are multiples of `MULTIPLE`."""
        return not any(extent % MULTIPLE for extent in self.extents)


def linear_layers(graph: Graph) -> dict[Node, Layer]:
    """Return the linear layers of a forward graph that are followed by another product."""
    followed = _followed_by_products(graph)
    found = {}
    for node in graph.nodes:
        if node.phase == "forward" and followed.intersection(node.outputs):
            layer = _layer(node)
            if layer is not None:
                found[node] = layer
    return found


def _followed_by_products(graph: Graph) -> set[Value]:
    """Return the values on which a product depends; losses end the network."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        if node.phase != "forward" or isinstance(node.op, LabelOp):
            continue
        if node.op.contracts(node) or found.intersection(node.outputs):
            found.update(node.inputs)
    return found


def _layer(node: Node) -> Layer | None:
    if type(node.op) is Matmul:
        transposes = node.attributes.transpose_a, node.attributes.accumulate
        if any(transposes) or node.output.type.rank != 2 or len(node.inputs[1].shape) != 2:
            return None
    elif not isinstance(node.op, Linear) or node.attributes.activation != "none":
        return None
    if node.output.type.dtype != bfloat16:
        return None
    rows, weight = (_before_cast(value) for value in node.inputs[:2])
    if not isinstance(weight, State) or weight.role != "parameter" or isinstance(rows, State):
        return None
    if any(value.type.dtype not in (float32, bfloat16) for value in (rows, weight)):
        return None
    return Layer(rows, weight, (*rows.shape, node.output.shape[1]))  # type: ignore[arg-type]


def _before_cast(value: Value) -> Value:
    """Return the float32 value that a value is a cast of, else the value."""
    if value.node is not None and isinstance(value.node.op, Cast):
        (source,) = value.node.inputs
        return source if source.type.dtype == float32 else value
    return value


class _Narrowed:
    """The rewriting of one graph."""

    def __init__(self, graph: Graph, layers: Mapping[Node, Layer]) -> None:
        self.rewriter, self.layers = Rewriter(graph), layers
        self.scales: dict[tuple[State, str], State] = {}
        self.stored: dict[tuple[type[Op], Value], tuple[Value, State]] = {}
        """Op and value → the 8-bit form and its scale."""

    def run(self) -> Graph:
        for node in self.rewriter.graph.nodes:
            if node not in self.layers:
                self.rewriter.put(node, builder.copy(node, self.rewriter.values(node.inputs)))
                continue
            self.rewriter.stand(node.outputs, (self.product(node, self.layers[node]),))
        for value in self.rewriter.kept:
            builder.keep(value)
        return builder.trace(self.rewriter.outputs)

    def product(self, node: Node, layer: Layer) -> Value:
        context = builder.Context(node.scope, node.mirror, node.phase, node.segment)
        is_turned = isinstance(node.op, Matmul) and not node.attributes.transpose_b
        rows, row_scale = self.quantized(Quantize, layer.rows, layer.weight, "rows", context)
        weight, weight_scale = self.quantized(
            QuantizeTurned if is_turned else Quantize, layer.weight, layer.weight, "weight", context
        )
        scales = row_scale, weight_scale, self.scale(layer.weight, "gradient")
        bias = self.rewriter.values(node.inputs[2:])
        operands = rows, weight, *scales, *bias
        op = REGISTRY[Float8Linear.name]
        return builder.create(op, operands, op.attributes(), context).output

    def quantized(
        self, op: type[Op], value: Value, weight: State, operand: str, context: builder.Context
    ) -> tuple[Value, State]:
        """Return the 8-bit form of a value and its scale; layers of the same rows share both."""
        if (op, value) not in self.stored:
            scale = self.scale(weight, operand)
            operands = self.rewriter.value(value), scale
            attributes = QuantizeAttributes(float8_e4m3.name)
            made = builder.create(REGISTRY[op.name], operands, attributes, context)
            self.stored[op, value] = made.outputs[0], scale
        return self.stored[op, value]

    def scale(self, weight: State, operand: str) -> State:
        """Return the scale of an operand of all layers with that weight."""
        if (weight, operand) not in self.scales:
            name = f"{FLOAT8_STATES}{weight.name}/{operand}/scale"
            self.scales[weight, operand] = builder.state(name, (2,), "float32", 1.0, "statistic")
        return self.scales[weight, operand]


def merge_orientations(graph: Graph) -> Graph:
    """Return a training graph in which one node stores a value and the transpose of that.

    So a value is read once, also if only its transpose is saved. Weights are stored again for
    their gradient instead, as are their copies in 16 bits (`casts_a_parameter`).
    """
    groups: dict[tuple[Value, ...], dict[type[Op], list[Node]]] = {}
    for node in graph.nodes:
        if type(node.op) in (Quantize, QuantizeTurned) and not casts_a_parameter(node):
            groups.setdefault(node.inputs, {}).setdefault(type(node.op), []).append(node)
    merged = {key: of for key, of in groups.items() if len(of) == 2}
    rewriter = Rewriter(graph)
    both: dict[tuple[Value, ...], Node] = {}
    for node in graph.nodes:
        if type(node.op) not in (Quantize, QuantizeTurned) or node.inputs not in merged:
            rewriter.put(node, rewriter.moved(node))
            continue
        if node.inputs not in both:
            inputs = rewriter.values(node.inputs)
            op = REGISTRY[QuantizeBoth.name]
            types = op.infer_types(node.attributes, tuple(value.type for value in inputs))
            fresh = instead(node, op.name, inputs, node.attributes, types)
            both[node.inputs] = rewriter.add(fresh)
        y, turned, maxima = both[node.inputs].outputs
        stored = y if type(node.op) is Quantize else turned
        rewriter.stand(node.outputs, (stored, maxima))
    return rewriter.result() if merged else graph


def update_scales(graph: Graph, ranks: int) -> Graph:
    """Return a training graph that also updates the scales that it reads.

    The largest magnitude of an operand is that over all layers, micro-batches and ranks that read
    the scale.
    """
    magnitudes: dict[State, dict[Value, Node]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Quantization) and isinstance(node.inputs[1], State):
            # A weight has one copy for each micro-batch, with equal magnitudes.
            magnitudes.setdefault(node.inputs[1], {}).setdefault(node.inputs[0], node)
    if not magnitudes:
        return graph
    with builder.in_phase("update"):
        found = [[node.outputs[-1] for node in nodes.values()] for nodes in magnitudes.values()]
        updates = []
        for (scale, nodes), maxima in zip(magnitudes.items(), _together(found, ranks), strict=True):
            name = scale.name.removesuffix("scale") + "history"
            history = builder.state(name, LAST.shape, "float32", 0.0, "statistic")
            attributes = next(iter(nodes.values())).attributes
            updates.append(
                builder.apply(ScaleUpdate, scale, history, maxima, attributes=attributes)
            )
    known = set(graph.nodes)
    added = [node for node in builder.trace({}, updates).nodes if node not in known]
    return Graph((*graph.nodes, *added), graph.outputs, graph.kept)


def _together(maxima: Sequence[Sequence[Value]], ranks: int) -> Sequence[Value]:
    """Return the maxima of each scale as one value, once all of them are known.

    So no update runs before the last gradient is stored, and a step that fails before that leaves
    all states unchanged. With several ranks, the result is the maximum of each scale over them.
    """
    if ranks == 1:
        sizes = [sum(each.type.elements for each in own) for own in maxima]
        return split(concat([each for own in maxima for each in own]), sizes)
    joint = concat([largest(concat(own), keepdims=True) for own in maxima])
    joint = reshape(all_gather(joint, ranks), (ranks, len(maxima)))
    return split(largest(joint, 0), len(maxima))
