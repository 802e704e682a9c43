"""Mixed precision: feature maps in 16 bits, parameters in float32 (Micikevicius et al., 2018).

Every op says by `Op.precision` what it does with float32 operands:

``narrow``  products: computed in 16 bits.
``wide``    sums over many elements, exponentials, losses: computed in float32.
``follow``  anything else: in 16 bits unless an operand was computed in float32 on purpose.
``move``    no arithmetic: as the operand is; views and lookups.

Inputs named in `Op.wide_inputs`, such as the scale of a norm, stay float32. Parameters and numbers
that are part of the graph have no precision of their own: they take that of the op that reads them.
"""

from __future__ import annotations

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.ops.choice import Cast, cast
from graphc.ir.plan import PRECISIONS, Precision
from graphc.ir.types import DType, as_dtype, float32


def to_mixed(graph: Graph, precision: Precision) -> Graph:
    """The forward graph with 16-bit feature maps; its outputs keep their types.

    `precision` is a key of `PRECISIONS`; the one of float32 leaves the graph as it is.
    """
    dtype = as_dtype(PRECISIONS[precision])
    return graph if dtype == float32 else _Mixed(dtype).run(graph)


class _Mixed:
    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.mapped: dict[Value, Value] = {}
        self.flexible: set[Value] = set()

    def run(self, graph: Graph) -> Graph:
        self.flexible.update(s for s in graph.sources if isinstance(s, State))
        for node in graph.nodes:
            self.convert(node)
        outputs = {name: self.restored(value) for name, value in graph.outputs.items()}
        for value in graph.kept:
            builder.keep(self.mapped.get(value, value))
        return builder.trace(outputs)

    def restored(self, value: Value) -> Value:
        found = self.mapped.get(value, value)
        return found if found.type == value.type else cast(found, value.type.dtype)

    def convert(self, node: Node) -> None:
        inputs = [self.mapped.get(value, value) for value in node.inputs]
        moves = node.op.views is not None or node.op.precision == "move" or not inputs
        if not moves:
            dtype = self.computed_in(node, inputs)
            with builder.in_phase(node.phase, node.scope):
                inputs = [
                    cast(value, dtype) if self.has_choice(node, index, value) else value
                    for index, value in enumerate(inputs)
                ]
        context = builder.Context(node.scope, node.mirror, node.phase, node.segment)
        fresh = builder.create(node.op, inputs, node.attributes, context)
        if moves and all(v in self.flexible for v in inputs if v.type.dtype == float32):
            self.flexible.update(fresh.outputs)
        self.mapped.update(zip(node.outputs, fresh.outputs, strict=True))

    def has_choice(self, node: Node, index: int, value: Value) -> bool:
        """Whether this operand may be of either precision."""
        is_wide = node.op.input_name(index) in node.op.wide_inputs
        return not is_wide and value.type.dtype in (float32, self.dtype)

    def computed_in(self, node: Node, inputs: list[Value]) -> DType:
        if isinstance(node.op, Cast):
            return inputs[0].type.dtype  # the user has chosen what to convert
        if node.op.precision == "narrow":
            return self.dtype
        if node.op.precision == "wide":
            return float32
        is_fixed = any(
            value.type.dtype == float32 and value not in self.flexible
            for index, value in enumerate(inputs)
            if self.has_choice(node, index, value)
        )
        return float32 if is_fixed else self.dtype


def casts_a_parameter(node: Node) -> bool:
    """Whether a node only makes a parameter, or a part of one, smaller.

    Such a copy is made again for the gradient: that costs a pass over the parameter, and keeping it
    would cost half the parameter's bytes between the two.
    """
    if not isinstance(node.op, Cast):
        return False
    value = node.inputs[0]
    while value.node is not None and value.node.op.views is not None:
        value = value.node.inputs[0]
    return isinstance(value, State)
