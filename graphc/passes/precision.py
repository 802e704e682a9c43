"""Mixed precision: feature maps in 16 bits, parameters in float32 (Micikevicius et al., 2018).

`Op.precision` says how each op treats float32 operands:

``narrow``  products: computed in 16 bits.
``wide``    sums over many elements, exponentials, losses: computed in float32.
``follow``  other ops: in 16 bits unless an operand was computed in float32 on purpose.
``lookup``  rows of a table: the table stays float32, the rows are narrowed.

Inputs named in `Op.wide_inputs`, such as the scale of a norm, stay float32. Parameters, constants
of the graph, and values computed only from these stay float32 and are flexible. They take the
precision of the op that reads them together with a feature map.
"""

from __future__ import annotations

from dataclasses import replace

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.op import is_16_bit
from graphc.ir.rewrite import Rewriter, rewrite
from graphc.ir.types import DType, as_dtype, float32
from graphc.ops.choice import BitCast, Cast, cast
from graphc.plans.memory_plan import PRECISIONS, Precision


def to_mixed(graph: Graph, precision: Precision) -> Graph:
    """Return the forward graph with 16-bit feature maps; its outputs keep their types.

    `precision` is a key of `PRECISIONS`; the key of float32 leaves the graph as it is.
    """
    dtype = as_dtype(PRECISIONS[precision])
    return graph if dtype == float32 else _Mixed(graph, dtype).run()


class _Mixed:
    """The rewriting of one graph; `flexible` has the values that may have either precision."""

    def __init__(self, graph: Graph, dtype: DType) -> None:
        self.dtype = dtype
        self.rewriter = Rewriter(graph)
        self.flexible: set[Value] = {s for s in graph.sources if isinstance(s, State)}

    def run(self) -> Graph:
        graph = self.rewriter.graph
        for node in graph.nodes:
            self.convert(node)
        outputs = {name: self.restored(value) for name, value in graph.outputs.items()}
        for value in self.rewriter.kept:
            builder.keep(value)
        return builder.trace(outputs)

    def restored(self, value: Value) -> Value:
        """Return the replacement of a value, cast to the dtype of the value."""
        found = self.rewriter.value(value)
        return found if found.type == value.type else cast(found, value.type.dtype)

    def convert(self, node: Node) -> None:
        """Add a copy of a node, with its operands cast to the dtype in which the node computes."""
        inputs = [*self.rewriter.values(node.inputs)]
        choices = [v for i, v in enumerate(inputs) if self.has_choice(node, i, v)]
        is_flexible = (
            node.op.precision in ("follow", "wide")
            and not isinstance(node.op, Cast | BitCast)
            and self.flexible.issuperset(choices)
        )
        with builder.in_phase(node.phase, node.scope, node.segment):
            shows = node.op.views is not None and not isinstance(node.op, BitCast)
            if not (is_flexible or shows or node.op.precision == "lookup"):
                dtype = self.computed_in(node, choices)
                inputs = [
                    cast(value, dtype) if self.has_choice(node, index, value) else value
                    for index, value in enumerate(inputs)
                ]
            context = builder.Context(node.scope, node.mirror, node.phase, node.segment)
            fresh = builder.create(node.op, inputs, node.attributes, context)
            outputs = fresh.outputs
            if node.op.precision == "lookup" and outputs[0].type.dtype == float32:
                outputs = (cast(outputs[0], self.dtype),)
        if node.copy_of is not None:
            fresh = replace(fresh, copy_of=self.rewriter.original(node), level=node.level)
            outputs = fresh.outputs
        self.rewriter.put(node, fresh)
        self.rewriter.stand(node.outputs, outputs)
        if is_flexible:
            self.flexible.update(outputs)

    def has_choice(self, node: Node, index: int, value: Value) -> bool:
        """Return True if input number `index` of a node may be float32 or 16 bits."""
        is_wide = node.op.input_name(index) in node.op.wide_inputs
        return not is_wide and value.type.dtype in (float32, self.dtype)

    def computed_in(self, node: Node, choices: list[Value]) -> DType:
        """Return the float dtype in which a node computes.

        It depends on the op and on `choices`, its operands that may have either precision.
        """
        if isinstance(node.op, Cast | BitCast):
            return node.inputs[0].type.dtype  # the user has chosen what to convert
        if node.op.precision == "narrow":
            return self.dtype
        fixed = any(v.type.dtype == float32 and v not in self.flexible for v in choices)
        return float32 if fixed or node.op.precision == "wide" else self.dtype


def widen_products(graph: Graph) -> Graph:
    """Return the graph with float32 results for products whose only use is a cast to float32.

    Gradients of weights are such products.
    """
    returned = set(graph.outputs.values())
    widened = {
        source.node.serial
        for node in graph.nodes
        if isinstance(node.op, Cast) and node.output.type.dtype == float32
        for source in node.inputs
        if source.node is not None
        and is_16_bit(source)
        and hasattr(source.node.attributes, "wide")
        and len(graph.uses[source]) == 1
        and source not in returned
    }

    def replacement(node: Node) -> Node | Value:
        if node.serial in widened:
            wide = replace(node.attributes, wide=True)
            types = node.op.infer_types(wide, tuple(value.type for value in node.inputs))
            return replace(node, attributes=wide, output_types=types)
        if isinstance(node.op, Cast) and node.inputs[0].type == node.output.type:
            return node.inputs[0]
        return node

    return rewrite(graph, replacement) if widened else graph
